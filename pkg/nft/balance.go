package nft

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// slots is how many elements the map of API servers has: shares are equal for 1 to 6 of them, and nearly so for more.
const slots = 60

// balanced is the purpose of the table "herald_api_servers": connections to a port of the VIP of the control plane
// are spread over the API servers that are ready (lb_enable, docs/control-plane.md, docs/why.md, "The control plane's
// VIP"), each in its turn:
//
//	set balanced { type ipv4_addr . inet_service; flags timeout; }
//	set balanced_ports { type inet_service; flags timeout; }
//	set targets { type ipv4_addr . inet_service; flags timeout; }
//	map servers { type integer : ipv4_addr . inet_service; flags timeout; }
//	chain prerouting {
//	  type nat hook prerouting priority -115; policy accept;
//	  meta l4proto tcp ip daddr . tcp dport @balanced fib daddr type local dnat to numgen inc mod 60 map @servers
//	}
//	chain output: the same, of the hook output, for the node's own
//	chain postrouting {
//	  type nat hook postrouting priority 90; policy accept;
//	  meta l4proto tcp ct status dnat ct original proto-dst @balanced_ports ip daddr . tcp dport @targets masquerade
//	}
//
// The rule that masquerades looks at the port that the connection was to and at where it goes, not at the VIP that it
// was to: nft(8) 1.0.6 aborts when it is to list a rule that looks up "ct original daddr", and so do programs that
// run it, such as kube-proxy.
//
// Only the first packet of a connection passes these chains; where it went conntrack remembers, whatever becomes of
// the map. So a connection stays with its API server until that ends. Those of this node's own share are translated
// as by the table herald_control_plane. The table is there while any API server is ready, and the map is changed in
// one transaction.
var balanced = purpose[vip.BalancedServer]{
	table: "herald_api_servers", what: "balancing of API servers",
	consequence: "the API server of the node that owns the control plane's VIP answers all connections",
	addr:        func(x vip.BalancedServer) netip.Addr { return x.Addr },
	compare: func(a, b vip.BalancedServer) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), a.To.Compare(b.To))
	},
	maps: func(f family, _ []vip.BalancedServer) []*nftables.Set {
		return []*nftables.Set{
			f.setOf("balanced", f.addr, nftables.TypeInetService), f.servers(),
			f.setOf("balanced_ports", nftables.TypeInetService), f.setOf("targets", f.addr, nftables.TypeInetService),
		}
	},
	build: buildBalanced, elements: balancedElements,
}

// servers is the map from a number less than slots to an API server.
func (f family) servers() *nftables.Set {
	set := f.setOf("servers", nftables.TypeInteger)
	set.IsMap, set.DataType = true, nftables.MustConcatSetType(f.addr, nftables.TypeInetService)
	return set
}

// balancedElements returns the elements for entries of the family, of one VIP.
func balancedElements(_ family, entries []vip.BalancedServer) [][]nftables.SetElement {
	if len(entries) == 0 {
		return nil
	}
	addr, port := entries[0].Addr.AsSlice(), portPart(entries[0].Port)
	all := [][]nftables.SetElement{{{Key: slices.Concat(addr, port)}}, nil, {{Key: port[:2]}}, nil}
	for _, x := range entries {
		all[3] = append(all[3], nftables.SetElement{Key: slices.Concat(x.To.Addr().AsSlice(), portPart(x.To.Port()))})
	}
	first := rand.IntN(len(entries)) // counting begins anew with each write: often at most one connection comes between
	for i := range slots {
		to := entries[(first+i)%len(entries)].To
		all[1] = append(all[1], nftables.SetElement{
			Key: binaryutil.NativeEndian.PutUint32(uint32(i)), Val: slices.Concat(to.Addr().AsSlice(), portPart(to.Port())),
		})
	}
	return all
}

func buildBalanced(c *nftables.Conn, f family, table *nftables.Table, sets []*nftables.Set, _ []vip.BalancedServer) {
	for _, hook := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"prerouting", nftables.ChainHookPrerouting}, {"output", nftables.ChainHookOutput}} {
		add := addChain(c, nftables.Chain{Table: table, Name: hook.name, Type: nftables.ChainTypeNAT, Hooknum: hook.hook,
			Priority: nftables.ChainPriorityRef(-115)}) // before the table herald_control_plane, and kube-proxy
		add(append(matchTCP(), f.loadDestination(), loadDestinationPort(f.part(1)), in(sets[0]),
			&expr.Fib{Register: third, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: third, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Numgen{Register: first, Modulus: slots, Type: unix.NFT_NG_INCREMENTAL}, lookUp(sets[1]),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.id), RegAddrMin: first, RegProtoMin: f.part(1),
				Specified: true})...)
	}
	add := addChain(c, nftables.Chain{Table: table, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(90)}) // before others'
	const dnat = 1 << 5 // IPS_DST_NAT
	add(slices.Concat(matchTCP(), matchBits(&expr.Ct{Key: expr.CtKeySTATUS, Register: first}, dnat, expr.CmpOpNeq),
		[]expr.Any{
			&expr.Ct{Key: expr.CtKeyPROTODST, Register: first}, in(sets[2]), // of the original direction
			f.loadDestination(), loadDestinationPort(f.part(1)), in(sets[3]), &expr.Masq{},
		})...)
}

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
