package nft

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// translations is the purpose of the table "herald_control_plane": connections to a port of the VIP of the control
// plane are translated to the node's own address, so that they do not end with the VIP on this node
// (docs/control-plane.md):
//
//	map own_address { type ipv4_addr . inet_service : ipv4_addr; flags timeout; }
//	chain prerouting {
//	  type nat hook prerouting priority -110; policy accept;
//	  meta l4proto tcp fib daddr type local socket wildcard 1 dnat to ip daddr . tcp dport map @own_address
//	}
//
// Only connections that begin while the VIP is bound here are translated ("fib daddr type local"), and only if what
// listens on that port listens on all addresses: a proxy that listens on the VIP alone gets its connections as
// before. Connections that are translated stay so, by conntrack. The chain must last as long as they do: the kernel
// translates nothing in a network namespace without any chain of the type nat (nf_nat_unregister_fn).
var translations = purpose[vip.Translation]{
	table: "herald_control_plane", what: "translation of the control plane's VIP",
	consequence: "connections to the API server are reset when the VIP moves",
	addr:        func(x vip.Translation) netip.Addr { return x.Addr },
	compare: func(a, b vip.Translation) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), a.To.Compare(b.To))
	},
	maps: func(f family, _ []vip.Translation) []*nftables.Set {
		return []*nftables.Set{f.mapOf("own_address", nftables.TypeInetService)}
	},
	build: buildTranslations, elements: translationElements,
}

func translationElements(_ family, entries []vip.Translation) [][]nftables.SetElement {
	var all []nftables.SetElement
	for _, x := range entries {
		key := slices.Concat(x.Addr.AsSlice(), portPart(x.Port))
		all = append(all, nftables.SetElement{Key: key, Val: x.To.AsSlice()})
	}
	return [][]nftables.SetElement{all}
}

func buildTranslations(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set, _ []vip.Translation) {
	add := addChain(c, nftables.Chain{Table: table, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-110)}) // before kube-proxy's
	local := binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)
	add(append(matchTCP(),
		f.loadDestination(), loadDestinationPort(f.part(1)), lookUp(maps[0]), // its own address is in the first register
		&expr.Fib{Register: third, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: third, Data: local},
		&expr.Socket{Key: expr.SocketKeyWildcard, Register: third}, // matches nothing if nobody listens
		&expr.Cmp{Op: expr.CmpOpEq, Register: third, Data: []byte{1}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.id), RegAddrMin: first})...)
}
