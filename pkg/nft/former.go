package nft

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// formerOwners is the purpose of the table "herald": when a VIP has moved, packets of TCP connections that began
// on a former owner are sent on to that node, whose conntrack knows them (docs/connections.md):
//
//	map former_owners { type ipv4_addr . iface_index : ipv4_addr; flags timeout; }
//	chain established {
//	  type filter hook prerouting priority -150; policy accept;
//	  meta l4proto tcp ct state invalid tcp flags & (fin | syn | rst | ack) == ack accept
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip daddr . iif map @former_owners ip ttl > 16 ip ttl set 16
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip ttl > 1 counter dup to ip daddr . iif map @former_owners device iif drop
//	}
//
// and the same two rules, before these, with a map former_owners_of_port for VIPs of which only one port counts, and
// with the map former_owners for errors that say that a packet is too large, in place of TCP: "icmp type . icmp code
// { destination-unreachable . frag-needed }". Before them come rules that send on what has a TTL of less than 16, by
// the maps former_owners_again and former_owners_of_port_again.
//
// The rule that accepts keeps here what this node knows, and conntrack calls invalid since it is outside the window
// of its connection: the former owner would take it for the first packet of another one, and reset the client's. It
// is not there if nf_conntrack_tcp_loose is 0, since then all packets of a former owner's connections are invalid.
// What ends those is invalid in any case, so the rule leaves out FIN and RST.
//
// The chain comes after conntrack (priority -200), which says whether this node knows the connection, and before any
// translation of addresses (-110, -100). Nodes that name each other send a packet to and fro until its TTL (hop
// limit) has ended: nf_dup_ipv4 and nf_dup_ipv6 take one off, but it is the rule that has to look at it, since on
// this way no kernel function does. Nodes may name each other while VIPs move, so the
// first rule leaves a packet 16.
//
// A packet that comes with less has been sent on by another node. Where that can be a ring, since this node has had
// the VIP before, the map former_owners_again comes first for such packets: from this node they go on past the nodes
// of the ring. A ring of live nodes ends in seconds, but one that leads through a node whose process was killed
// stays, for nobody changes the entries of that node.
var formerOwners = purpose[vip.FormerOwner]{
	table: "herald", what: "former owners of VIPs",
	consequence: "established connections of VIPs that have moved to this node are reset",
	addr:        func(x vip.FormerOwner) netip.Addr { return x.Addr },
	link:        func(x vip.FormerOwner) string { return x.Link },
	compare: func(a, b vip.FormerOwner) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Link, b.Link), cmp.Compare(a.Port, b.Port),
			a.NextHop.Compare(b.NextHop), a.Again.Compare(b.Again))
	},
	maps: func(f family, _ []vip.FormerOwner) []*nftables.Set {
		return slices.Concat(f.formerOwners(""), f.formerOwners("_again"))
	},
	build: buildFormerOwners, elements: formerOwnerElements,
}

// formerOwners returns the maps to the next hop from a VIP, and maybe its port, on a link.
func (f family) formerOwners(suffix string) []*nftables.Set {
	return []*nftables.Set{
		f.mapOf("former_owners"+suffix, nftables.TypeIFIndex),
		f.mapOf("former_owners_of_port"+suffix, nftables.TypeInetService, nftables.TypeIFIndex),
	}
}

// formerOwnerElements returns the elements of existing links.
func formerOwnerElements(_ family, entries []vip.FormerOwner) [][]nftables.SetElement {
	all, links := make([][]nftables.SetElement, 4), make(linkIndexes)
	for _, x := range entries {
		link, ok := links.part(x.Link)
		if !ok {
			continue
		}
		i, key := 0, slices.Concat(x.Addr.AsSlice(), link)
		if x.Port > 0 {
			i, key = 1, slices.Concat(x.Addr.AsSlice(), portPart(x.Port), link)
		}
		all[i] = append(all[i], nftables.SetElement{Key: key, Val: x.NextHop.AsSlice()})
		if x.Again.IsValid() {
			all[i+2] = append(all[i+2], nftables.SetElement{Key: key, Val: x.Again.AsSlice()})
		}
	}
	return all
}

// maxHops is the TTL (hop limit) left when first sent on: enough for all former owners of a VIP (8, pkg/lease) and the
// way to a Pod, and a bound where nodes name each other.
const maxHops = 16

func buildFormerOwners(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set, _ []vip.FormerOwner) {
	add := addChain(c, nftables.Chain{Table: table, Name: "established", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-150)}) // conntrack, this, translation
	for _, rule := range f.formerOwnerRules(maps, beginsAnywhere()) {
		add(rule...)
	}
}

// formerOwnerRules is the rules of the chain established; loose is beginsAnywhere. To ports with their own entries even
// invalid packets are sent on: kube-proxy has no part in it, and this node may have forwarded the first packet of
// another's connection.
func (f family) formerOwnerRules(maps []*nftables.Set, loose bool) (rules [][]expr.Any) {
	unknown := slices.Concat(matchTCP(), matchUnknown(), matchFlags(2|4|16, expr.CmpOpNeq, 2)) // what begins no connection
	tooLarge := slices.Concat(f.matchTooLarge(), matchUnknown())
	// byPort and byVIP put the next hop into the first register, or don't match.
	byPort := func(m *nftables.Set) []expr.Any {
		return []expr.Any{f.loadDestination(), loadDestinationPort(f.part(1)),
			&expr.Meta{Key: expr.MetaKeyIIF, Register: f.part(2)}, lookUp(m)}
	}
	byVIP := func(m *nftables.Set) []expr.Any {
		return []expr.Any{f.loadDestination(), &expr.Meta{Key: expr.MetaKeyIIF, Register: f.part(1)}, lookUp(m)}
	}
	sendOn := func(match []expr.Any, hop func(*nftables.Set) []expr.Any, fresh, again *nftables.Set) {
		rules = append(rules, slices.Concat(match, f.matchTTL(expr.CmpOpLt, maxHops), hop(again), f.sendOn()))
		rules = append(rules, slices.Concat(match, hop(fresh), f.shortenTTL()), slices.Concat(match, hop(fresh), f.sendOn()))
	}
	sendOn(unknown, byPort, maps[1], maps[3])
	if loose {
		rules = append(rules, append(matchOutsideWindow(), &expr.Verdict{Kind: expr.VerdictAccept}))
	}
	sendOn(unknown, byVIP, maps[0], maps[2])
	sendOn(tooLarge, byVIP, maps[0], maps[2])
	return rules
}

// matchTTL matches packets by their TTL (hop limit).
func (f family) matchTTL(op expr.CmpOp, hops byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1, DestRegister: second},
		&expr.Cmp{Op: op, Register: second, Data: []byte{hops}},
	}
}

// matchUnknown matches packets of no known connection, nor an error about one.
func matchUnknown() []expr.Any {
	return matchState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, expr.CmpOpEq)
}

// matchTooLarge matches errors that packets are too large (RFC 1191, RFC 8201; RFC 792, RFC 4443).
func (f family) matchTooLarge() []expr.Any {
	octet := func(offset uint32, value byte) []expr.Any { // of the ICMP header
		return []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1, DestRegister: first},
			&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{value}},
		}
	}
	if f.is4 {
		return slices.Concat(matchProtocol(unix.IPPROTO_ICMP), octet(0, 3), octet(1, 4))
	}
	return slices.Concat(matchProtocol(unix.IPPROTO_ICMPV6), octet(0, 2))
}

// shortenTTL lowers a TTL (hop limit) to maxHops.
func (f family) shortenTTL() []expr.Any {
	write := expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1,
		OperationType: expr.PayloadWrite, SourceRegister: second}
	if f.is4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10 // of the header (RFC 791, section 3.1)
	}
	return append(f.matchTTL(expr.CmpOpGt, maxHops), &expr.Immediate{Register: second, Data: []byte{maxHops}}, &write)
}

// sendOn sends a packet whose TTL has not ended to the next hop, and drops it here.
func (f family) sendOn() []expr.Any {
	return append(f.matchTTL(expr.CmpOpGt, 1),
		&expr.Counter{},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: second},
		&expr.Dup{RegAddr: first, RegDev: second, IsRegDevSet: true},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)
}
