package nft

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/heraldvip/herald/pkg/vip"
)

// formerOwners is the purpose of the table "herald": when a VIP has moved, packets of TCP connections that began
// on a former owner are sent on to that node, whose conntrack knows them (docs/connections.md):
//
//	map former_owners { type ipv4_addr . iface_index : ipv4_addr; flags timeout; }
//	chain established {
//	  type filter hook prerouting priority -150; policy accept;
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip daddr . iif map @former_owners ip ttl > 16 ip ttl set 16
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip ttl > 1 counter dup to ip daddr . iif map @former_owners device iif drop
//	}
//
// and the same two rules with a map former_owners_of_port for VIPs of which only one port counts.
//
// The chain comes after conntrack (priority -200), which says whether this node knows the
// connection, and before any translation of addresses (-110, -100). Nodes that name each other
// send a packet to and fro until its TTL (hop limit) has ended: nf_dup_ipv4 and nf_dup_ipv6 take
// one off, but it is the rule that has to look at it, since on this way no kernel function does. A tenant can have nodes name
// each other, by the annotation of a VIP lease, so the first rule leaves a packet 16.
var formerOwners = purpose[vip.FormerOwner]{
	table: "herald", what: "former owners of VIPs",
	consequence: "established connections of VIPs that have moved to this node are reset",
	addr:        func(x vip.FormerOwner) netip.Addr { return x.Addr },
	compare: func(a, b vip.FormerOwner) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Link, b.Link), cmp.Compare(a.Port, b.Port), a.NextHop.Compare(b.NextHop))
	},
	maps:  func(f family) []*nftables.Set { return []*nftables.Set{f.formerOwners(), f.formerOwnersOfPort()} },
	build: buildFormerOwners, elements: formerOwnerElements,
}

// formerOwners is the map from a VIP and the link on which packets to it arrive to the next hop.
func (f family) formerOwners() *nftables.Set {
	return f.mapOf("herald", "former_owners", nftables.TypeIFIndex)
}

// formerOwnersOfPort is the map from a VIP, a port and that link to the next hop.
func (f family) formerOwnersOfPort() *nftables.Set {
	return f.mapOf("herald", "former_owners_of_port", nftables.TypeInetService, nftables.TypeIFIndex)
}

// formerOwnerElements are the elements of the maps for entries of the family. Entries on a link that is
// not there are left out, and so is a second one for the same VIP, port and link.
func formerOwnerElements(_ family, entries []vip.FormerOwner) [][]nftables.SetElement {
	var all, ofPort []nftables.SetElement
	links, seen := make(linkIndexes), make(map[string]bool)
	for _, x := range entries {
		link, ok := links.part(x.Link)
		switch {
		case !ok:
		case x.Port == 0:
			all = addElement(all, seen, x.NextHop, x.Addr.AsSlice(), link)
		default:
			ofPort = addElement(ofPort, seen, x.NextHop, x.Addr.AsSlice(), portPart(x.Port), link)
		}
	}
	return [][]nftables.SetElement{all, ofPort}
}

// maxHops is the TTL (hop limit) that a packet has left at most when it is first sent on: enough for all former owners of a VIP
// (8, pkg/lease) and the way to a Pod, and what a packet is sent to and fro at most where nodes name each other.
const maxHops = 16

// buildFormerOwners adds the family's chain and rules to the transaction. maps are the map without and the one with
// a port.
func buildFormerOwners(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set) {
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: "established", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(-150), // after conntrack, before translation
	})
	for _, key := range [][]expr.Any{
		{f.loadDestination(), &expr.Meta{Key: expr.MetaKeyIIF, Register: f.part(1)}, lookUp(maps[0])},
		{f.loadDestination(), loadDestinationPort(f.part(1)), &expr.Meta{Key: expr.MetaKeyIIF, Register: f.part(2)}, lookUp(maps[1])},
	} {
		match := slices.Concat(matchTCP(), matchUnknown(), key) // now the next hop is in the first register
		for _, then := range [][]expr.Any{f.shortenTTL(), f.sendOn()} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(match, then)})
		}
	}
}

// matchUnknown matches packets of a TCP connection that this node does not know, and that do not begin one.
func matchUnknown() []expr.Any {
	known := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: known, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: make([]byte, 4)},
		// The flags, octet 13 of the TCP header (RFC 9293, section 3.1): FIN 1, SYN 2, RST 4, ACK 16.
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{2 | 4 | 16}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: []byte{2}}, // no SYN alone, which begins a connection here
	}
}

// shortenTTL makes a TTL (hop limit) of more than maxHops maxHops.
func (f family) shortenTTL() []expr.Any {
	read := expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1, DestRegister: second}
	write := expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1, OperationType: expr.PayloadWrite, SourceRegister: second}
	if f.is4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10 // of the header (RFC 791, section 3.1)
	}
	return []expr.Any{
		&read,
		&expr.Cmp{Op: expr.CmpOpGt, Register: second, Data: []byte{maxHops}},
		&expr.Immediate{Register: second, Data: []byte{maxHops}},
		&write,
	}
}

// sendOn sends a packet whose TTL (hop limit) has not ended to the next hop in the register first, and drops it here.
func (f family) sendOn() []expr.Any {
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1, DestRegister: second},
		&expr.Cmp{Op: expr.CmpOpGt, Register: second, Data: []byte{1}},
		&expr.Counter{},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: second},
		&expr.Dup{RegAddr: first, RegDev: second, IsRegDevSet: true},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}
