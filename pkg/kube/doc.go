// Package kube is Herald's only way to the Kubernetes API server, but for what
// Leases mean. It watches Services, EndpointSlices, Nodes, ServiceCIDRs and Leases,
// and converts each object to the values of package vip once, when it arrives, so that
// a pass of the agent only collects them. It writes the status of Services and Events.
//
//	API server -> Reflector (list, watch) -> reflectorStore -> Cluster.Observe -> World
//	Plan -> Statuses.Put, Events.Put -> their Run -> API server
//
// Leases are handed on as they are: package lease knows what they mean. They are
// written over a connection of their own, so that a renewal never waits behind
// anything else.
package kube
