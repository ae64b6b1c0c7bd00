package nft

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// invalid is the purpose of the table "herald_invalid": a packet that is outside the window of its connection is not delivered to this node at a VIP of a Service:
//
//	set vips { type ipv4_addr; }
//	chain input {
//	  type filter hook input priority 0; policy accept;
//	  meta l4proto tcp ct state invalid tcp flags & (fin | syn | rst | ack) == ack ip daddr @vips counter drop
//	}
//
// nftables translates only what conntrack follows, so kube-proxy's translation does not concern such a packet. The kernel of the node, on which
// nobody listens at the VIP, would answer it with a reset that the client accepts, and a connection would end that works. Where packets are forwarded, kube-proxy drops them itself.
//
// Nothing of it is there if nf_conntrack_tcp_loose is 0 (beginsAnywhere).
var invalid = purpose[netip.Addr]{
	table: "herald_invalid", what: "VIPs at which packets outside their connection's window are dropped",
	consequence: "a packet that conntrack calls invalid resets its connection to a Service",
	addr:        func(a netip.Addr) netip.Addr { return a },
	compare:     netip.Addr.Compare,
	maps: func(f family, _ []netip.Addr) []*nftables.Set {
		return []*nftables.Set{{Table: f.table("herald_invalid"), Name: "vips", KeyType: f.addr}} // without a timeout, so that nobody has to renew it
	},
	build: buildInvalid,
	elements: func(_ family, entries []netip.Addr) [][]nftables.SetElement {
		var all []nftables.SetElement
		for _, a := range slices.Compact(slices.Clone(entries)) { // they are sorted
			all = append(all, nftables.SetElement{Key: a.AsSlice()})
		}
		return [][]nftables.SetElement{all}
	},
}

// buildInvalid adds the family's chain and rule to the transaction.
func buildInvalid(c *draft, f family, table *nftables.Table, sets []*nftables.Set, _ []netip.Addr) {
	if !beginsAnywhere() {
		return
	}
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchOutsideWindow(),
		f.loadDestination(), &expr.Lookup{SourceRegister: first, SetName: sets[0].Name, SetID: sets[0].ID},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	)})
}

// matchOutsideWindow matches packets of TCP that conntrack calls invalid although it knows their connection, if beginsAnywhere: it would
// take one of a connection that it does not know for the first of a new one, if it has the flag ACK and neither FIN, SYN nor RST (tcp_conntracks in nf_conntrack_proto_tcp.c).
func matchOutsideWindow() []expr.Any {
	return append(matchTCP(),
		&expr.Ct{Key: expr.CtKeySTATE, Register: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitINVALID), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: make([]byte, 4)},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: first}, // as in matchNoBeginning
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{1 | 2 | 4 | 16}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{16}},
	)
}

// beginsAnywhere reports whether conntrack of this network namespace begins to follow a connection by a packet in its midst, as it does unless the sysctl
// nf_conntrack_tcp_loose is 0. Without conntrack, which a rule will load, it is true.
func beginsAnywhere() bool {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
	return err != nil || strings.TrimSpace(string(b)) != "0"
}
