// Package lab brings up a real Kubernetes cluster on bare metal within one
// Linux machine: etcd, API server, controller of EndpointSlices, a kube-proxy per node and
// backends, each in network namespaces that are joined by a switch. It is what
// Herald's demo, end-to-end tests and benchmarks run against (docs/why.md, "The lab").
//
//	             switch: bridge "lan" 10.77.0.0/24 fd77::/64
//	  ┌─────┬─────┬───┴─┬─────┬─────┬─────┐
//	 n1    n2    n3    w1    rt    cl    pr
//	.11   .12   .13   .31    .1  .100  .101
//	  └─────┴─────┴──┬──┘
//	             switch: bridge "mgmt" 10.78.0.0/24
//	                 │.2
//	                 cp (etcd, API server, controller of EndpointSlices)
//
// n1.. are the nodes Herald runs on, w1 is a node that only carries pods, so
// that cutting a node cuts no backend; rt is the nodes' default gateway, cl the
// client, and pr the host that asks who has an address. pr is a host of its own
// because what it hears would freshen the client's neighbour cache, and hide
// from the client the very faults it is there to see.
//
// With Options.IPv6Only the IPv6 addresses are the only ones, also on the management network, fd78::/64.
//
// There are no kubelets: Nodes, Pods and their status are written by the lab,
// EndpointSlices by the real controller. Namespaces are never finalized, since
// no controller does it.
//
// It needs root, the programs that testing/lab/parts/build.sh builds, and the
// packages that testing/lab/deps.sh installs.
package lab
