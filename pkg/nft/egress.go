package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/heraldvip/herald/pkg/vip"
)

// egress is the purpose of the table "herald_egress": what the pods of a Service with kube-vip.io/egress send leaves
// the cluster with the Service's VIP as its source (docs/egress.md):
//
//	set internal { type ipv4_addr; flags interval; }
//	map own { type ipv4_addr : verdict; flags timeout; }      # pods whose VIP this node has, on whichever node they are
//	map elsewhere { type ipv4_addr : verdict; flags timeout; } # pods of this node whose VIP another node has or had
//	set routed { type ipv4_addr; flags timeout; }              # the pods of elsewhere
//	set denied_0 { type ipv4_addr; flags interval; }           # of the first VIP; likewise allowed_0
//	set to_0 { type inet_proto . inet_service; }               # likewise from_0
//	chain vip_0 {
//	  ip daddr @denied_0 return
//	  ip daddr != @allowed_0 return
//	  meta l4proto . th dport != @to_0 return
//	  meta l4proto . th sport != @from_0 return
//	  snat to 10.0.0.200 or: meta mark set meta mark | 0x1000 ct mark set ct mark | 0x1000
//	  or, of an Egress with Former: meta l4proto tcp ct mark & 0x1000 != 0 meta mark set meta mark | 0x1000
//	}
//	chain prerouting {
//	  type filter hook prerouting priority -90; policy accept;
//	  ct direction reply accept
//	  ct status & snat != 0 accept
//	  ip daddr @internal accept
//	  ip saddr vmap @elsewhere
//	}
//	chain postrouting {
//	  type nat hook postrouting priority 90; policy accept;
//	  ip saddr @routed meta mark & 0x1000 != 0 snat to ip saddr
//	  ip daddr @internal accept
//	  ip saddr vmap @own
//	}
//
// Both chains come after kube-proxy has translated the destination (-100), so packets to a Service have a pod's
// address there, which is internal. By the mark a rule of the routing policy database sends packets to the owner
// (pkg/routes), which has to see the pod's address: so no other program, such as the network plugin, may translate
// the source on the pod's node, and "snat to ip saddr" is what keeps it. What a pod answers to a connection from
// outside, as by a node port, goes back by this node, which has translated its destination: the owner would drop it.
// A connection whose source has been translated already goes on as it is. The chain postrouting comes before the
// others that masquerade (100).
var egress = purpose[vip.Egress]{
	table: "herald_egress", what: "egress of pods with VIPs as their source",
	consequence: "what the pods of Services with kube-vip.io/egress send has the source that the network plugin gives it",
	addr:        func(x vip.Egress) netip.Addr { return x.VIP },
	compare: func(a, b vip.Egress) int { // no pod is in two
		return cmp.Or(a.VIP.Compare(b.VIP), a.Via.Compare(b.Via), cmp.Compare(a.Link, b.Link),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare))
	},
	equal: vip.Egress.Equal, maps: egressSets, build: buildEgress, elements: egressElements,
}

// fixedEgressSets is how many sets the table always has: internal, own, elsewhere and routed.
const fixedEgressSets = 4

// egressSets describes the fixed sets of the table, and four for each entry.
func egressSets(f family, entries []vip.Egress) []*nftables.Set {
	interval := func(name string) *nftables.Set {
		return &nftables.Set{Name: name, KeyType: f.addr, Interval: true}
	}
	ports := func(name string) *nftables.Set {
		return &nftables.Set{Name: name, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)}
	}
	pods := func(name string) *nftables.Set {
		return &nftables.Set{Name: name, KeyType: f.addr, IsMap: true, DataType: nftables.TypeVerdict,
			HasTimeout: true, Timeout: vip.EgressTimeout}
	}
	routed := &nftables.Set{Name: "routed", KeyType: f.addr, HasTimeout: true, Timeout: vip.EgressTimeout}
	all := []*nftables.Set{interval("internal"), pods("own"), pods("elsewhere"), routed}
	for i := range entries {
		n := fmt.Sprint("_", i)
		all = append(all, interval("denied"+n), interval("allowed"+n), ports("to"+n), ports("from"+n))
	}
	return all
}

// egressElements returns their elements; a pod of two entries counts for the first.
func egressElements(f family, entries []vip.Egress) [][]nftables.SetElement {
	all := make([][]nftables.SetElement, fixedEgressSets)
	if len(entries) > 0 {
		all[0] = f.intervals(entries[0].Internal)
	}
	for i, x := range entries {
		of, verdict := 1, &expr.Verdict{Kind: expr.VerdictGoto, Chain: egressChain(i)}
		if x.Via.IsValid() {
			of = 2
		}
		for _, pod := range x.Pods {
			all[of] = append(all[of], nftables.SetElement{Key: pod.AsSlice(), VerdictData: verdict})
			if of == 2 {
				all[3] = append(all[3], nftables.SetElement{Key: pod.AsSlice()})
			}
		}
		all = append(all, f.intervals(x.DeniedNetworks), f.intervals(x.AllowedNetworks), portElements(x.DestinationPorts),
			portElements(x.SourcePorts))
	}
	return all
}

func egressChain(i int) string { return fmt.Sprint("vip_", i) }

// portElements returns ports with their protocols.
func portElements(ports []vip.Port) (all []nftables.SetElement) {
	for _, p := range ports {
		if number, known := protocols[p.Protocol]; known {
			all = append(all, nftables.SetElement{Key: append([]byte{number, 0, 0, 0}, portPart(p.Port)...)})
		}
	}
	return all
}

// intervals returns the networks of the family as intervals that do not touch.
func (f family) intervals(networks []netip.Prefix) (all []nftables.SetElement) {
	var own []vip.Range
	for _, n := range networks {
		if n.Addr().Is4() == f.is4 {
			own = append(own, vip.RangeOf(n))
		}
	}
	for _, r := range vip.MergeRanges(own) {
		all = append(all, nftables.SetElement{Key: r.From.AsSlice()})
		if end := r.To.Next(); end.IsValid() { // it is not after the last of all
			all = append(all, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

func buildEgress(c *nftables.Conn, f family, table *nftables.Table, sets []*nftables.Set, entries []vip.Egress) {
	source, accept := f.loadSource(), &expr.Verdict{Kind: expr.VerdictAccept}
	for i, x := range entries {
		f.addEgressRules(addChain(c, nftables.Chain{Table: table, Name: egressChain(i)}), sets[fixedEgressSets+4*i:], x)
	}
	add := addChain(c, nftables.Chain{Table: table, Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-90)})
	for _, rule := range f.egressPrerouting(sets) {
		add(rule...)
	}
	add = addChain(c, nftables.Chain{Table: table, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(90)})
	add(slices.Concat([]expr.Any{source, in(sets[3])},
		matchBits(&expr.Meta{Key: expr.MetaKeyMARK, Register: first}, vip.EgressMark, expr.CmpOpNeq), []expr.Any{
			source, &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.id), RegAddrMin: first},
		})...)
	add(f.loadDestination(), in(sets[0]), accept)
	add(source, verdict(sets[1]))
}

func (f family) egressPrerouting(sets []*nftables.Set) [][]expr.Any {
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	return [][]expr.Any{
		append(matchReplies(), accept),
		append(matchBits(&expr.Ct{Key: expr.CtKeySTATUS, Register: first}, 1<<4, expr.CmpOpNeq), accept), // IPS_SRC_NAT
		{f.loadDestination(), in(sets[0]), accept},
		{f.loadSource(), verdict(sets[2])},
	}
}

func (f family) loadSource() *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.addr.Bytes, DestRegister: first}
}

// verdict goes where a map leads what is in the register first.
func verdict(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID, IsDestRegSet: true} // of the verdict, 0
}

// addEgressRules adds the rules of one entry's chain: what is outside its limits returns.
func (f family) addEgressRules(add func(...expr.Any), sets []*nftables.Set, x vip.Egress) {
	returns := &expr.Verdict{Kind: expr.VerdictReturn}
	if len(x.DeniedNetworks) > 0 {
		add(f.loadDestination(), in(sets[0]), returns)
	}
	if len(x.AllowedNetworks) > 0 {
		add(f.loadDestination(), notIn(sets[1]), returns)
	}
	for i, ports := range [][]vip.Port{x.DestinationPorts, x.SourcePorts} {
		if len(ports) == 0 {
			continue
		}
		add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: uint32(2 - 2*i), Len: 2, DestRegister: secondPart},
			notIn(sets[2+i]), returns)
	}
	mark := setBit(&expr.Meta{Key: expr.MetaKeyMARK, Register: first},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: first, SourceRegister: true})
	remember := setBit(&expr.Ct{Key: expr.CtKeyMARK, Register: first},
		&expr.Ct{Key: expr.CtKeyMARK, Register: first, SourceRegister: true})
	switch {
	case x.Former:
		led := matchBits(&expr.Ct{Key: expr.CtKeyMARK, Register: first}, vip.EgressMark, expr.CmpOpNeq)
		add(slices.Concat(matchTCP(), led, []expr.Any{&expr.Counter{}}, mark)...)
		return
	case x.Via.IsValid():
		add(slices.Concat([]expr.Any{&expr.Counter{}}, mark, remember)...)
		return
	}
	add(&expr.Counter{}, &expr.Immediate{Register: first, Data: x.VIP.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.id), RegAddrMin: first})
}

func setBit(load, store expr.Any) []expr.Any {
	mark := binaryutil.NativeEndian.PutUint32(vip.EgressMark)
	rest := binaryutil.NativeEndian.PutUint32(^uint32(vip.EgressMark))
	return []expr.Any{load, &expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: rest, Xor: mark},
		store}
}
