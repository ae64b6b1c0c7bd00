package nft

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// openPorts is the purpose of the table "herald_ports": what this node's own processes listen on is not to be reached
// at VIPs of Services (enable_service_security, docs/security.md):
//
//	set limited { type ipv4_addr; flags timeout; }
//	set open { type ipv4_addr . inet_proto . inet_service; flags timeout; }
//	chain input {
//	  type filter hook input priority 0; policy accept;
//	  ip daddr != @limited accept
//	  ct direction reply accept
//	  meta l4proto icmp accept
//	  ip daddr . meta l4proto . th dport @open accept
//	  counter drop
//	}
//
// What kube-proxy translates, in its iptables and nftables modes, does not come by the hook input with the VIP as its
// destination. In its ipvs mode it does, and to one of the open ports. Replies to what the node itself sends from the
// VIP pass, and so does ICMP, without which there is no path MTU and no neighbor discovery.
var openPorts = purpose[vip.OpenPort]{
	table: "herald_ports", what: "ports of VIPs",
	consequence: "no VIP of a Service is bound by this node that it has not already, since enable_service_security " +
		"asks for it",
	addr: func(x vip.OpenPort) netip.Addr { return x.Addr },
	compare: func(a, b vip.OpenPort) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	},
	maps: func(f family, _ []vip.OpenPort) []*nftables.Set {
		return []*nftables.Set{f.setOf("limited", f.addr),
			f.setOf("open", f.addr, nftables.TypeInetProto, nftables.TypeInetService)}
	},
	build: buildOpenPorts, elements: openPortElements,
}

var protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// openPortElements returns the two sets' elements; an entry without a protocol only limits.
func openPortElements(_ family, entries []vip.OpenPort) [][]nftables.SetElement {
	all := make([][]nftables.SetElement, 2)
	for _, x := range entries {
		all[0] = append(all[0], nftables.SetElement{Key: x.Addr.AsSlice()})
		if number, known := protocols[x.Protocol]; known {
			key := slices.Concat(x.Addr.AsSlice(), []byte{number, 0, 0, 0}, portPart(x.Port))
			all[1] = append(all[1], nftables.SetElement{Key: key})
		}
	}
	return all
}

func buildOpenPorts(c *nftables.Conn, f family, table *nftables.Table, sets []*nftables.Set, _ []vip.OpenPort) {
	add := addChain(c, nftables.Chain{Table: table, Name: "input", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	icmp := byte(unix.IPPROTO_ICMP)
	if !f.is4 {
		icmp = unix.IPPROTO_ICMPV6
	}
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	add(f.loadDestination(), notIn(sets[0]), accept)
	add(append(matchReplies(), accept)...)
	add(append(matchProtocol(icmp), accept)...)
	add(f.loadDestination(), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: f.part(1)},
		loadDestinationPort(f.part(2)), in(sets[1]), accept) // UDP and SCTP have the port where TCP has
	add(&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
}

// HostPorts describes rules of the CNI plugin portmap beside kube-proxy's nftables mode, or is "". Both translate at
// priority -100 what comes for a local address, and the kernel asks whose chain is newer first.
func HostPorts() (found string, err error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	for _, f := range families {
		chains, err := c.ListChainsOfTableFamily(f.id)
		if err != nil {
			return "", fmt.Errorf("nftables chains of the family %s: %w", f.name, err)
		}
		has := func(names ...string) bool {
			return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
				return slices.Contains(names, c.Name) || slices.Contains(names, c.Table.Name)
			})
		}
		if has("kube-proxy") && has("CNI-HOSTPORT-DNAT", "cni_hostport") {
			return "pods with a hostPort run here (CNI plugin portmap), and kube-proxy is in its nftables mode: at a VIP " +
				"whose port is also a hostPort, such a pod may answer in place of " +
				"the Service's pods, on each node that has one. Take another hostPort, or give it a hostIP that is no VIP, or " +
				"use kube-proxy's iptables mode", nil
		}
	}
	return "", nil
}

// WarnOfHostPorts logs what HostPorts says.
func WarnOfHostPorts(log *slog.Logger) {
	switch found, err := HostPorts(); {
	case err != nil:
		log.Debug("nftables can't be asked for rules of hostPorts", "err", err)
	case found != "":
		log.Warn(found)
	}
}
