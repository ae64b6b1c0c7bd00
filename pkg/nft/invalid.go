package nft

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// invalid is the purpose of the table "herald_invalid": what comes for a VIP of a Service that is bound or advertised
// here, and kube-proxy has not translated:
//
//	set vips { type ipv4_addr; }
//	chain input {
//	  type filter hook input priority 0; policy accept;
//	  meta l4proto tcp ct state invalid tcp flags & (fin | syn | rst | ack) == ack ip daddr @vips counter drop
//	}
//	chain untranslated {
//	  type filter hook input priority 200; policy accept;
//	  ct state != new accept
//	  ip daddr != @vips accept
//	  socket wildcard <= 1 accept
//	  meta l4proto tcp reject with tcp reset
//	  meta l4proto { udp, sctp } reject
//	}
//	chain unbound {
//	  type filter hook forward priority 200; policy accept;
//	  ct state != new accept
//	  ip daddr != @vips accept
//	  oifname "antrea-gw0" accept
//	  meta l4proto tcp reject with tcp reset
//	  reject
//	}
//
// A packet outside the window of its connection is not translated, since conntrack does not take it as part of that.
// The kernel, on which nobody listens at the VIP, would answer it with a reset that ends a connection which works
// (where packets are forwarded, kube-proxy drops them itself). That rule is not there if nf_conntrack_tcp_loose is 0
// (beginsAnywhere).
//
// The first packet of a flow may come before kube-proxy has its rule. The kernel would refuse it as these rules do,
// but conntrack would remember the flow as not translated, and it would never be served while its packets go on. What
// is refused here conntrack forgets (nf_conntrack_confirm comes later). Priority 200 comes after kube-proxy's ipvs
// mode (NF_IP_PRI_NAT_SRC - 1), which takes its packets from the hook input.
//
// To a VIP that is advertised, and not bound, the kernel would send packets back to the router until their TTL ends.
// What kube-proxy has translated has a pod as its destination by then.
var invalid = purpose[netip.Addr]{
	table: "herald_invalid", what: "VIPs at which only kube-proxy takes packets",
	consequence: "a client that sends to a Service before kube-proxy serves it may never be served, and invalid " +
		"packets reset connections",
	addr:    func(a netip.Addr) netip.Addr { return a },
	compare: netip.Addr.Compare,
	maps: func(f family, _ []netip.Addr) []*nftables.Set {
		// without a timeout, so that nobody has to renew it
		return []*nftables.Set{{Name: "vips", KeyType: f.addr}}
	},
	build: buildInvalid,
	elements: func(_ family, entries []netip.Addr) [][]nftables.SetElement {
		var all []nftables.SetElement
		for _, a := range entries {
			all = append(all, nftables.SetElement{Key: a.AsSlice()})
		}
		return [][]nftables.SetElement{all}
	},
}

func buildInvalid(c *nftables.Conn, f family, table *nftables.Table, sets []*nftables.Set, _ []netip.Addr) {
	if beginsAnywhere() {
		add := addChain(c, nftables.Chain{Table: table, Name: "input", Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
		add(append(matchOutsideWindow(), f.loadDestination(), in(sets[0]), &expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop})...)
	}
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	refuse := func(chain string, hook *nftables.ChainHook, unless ...expr.Any) (add func(...expr.Any)) {
		add = addChain(c, nftables.Chain{Table: table, Name: chain, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: nftables.ChainPriorityRef(200)})
		add(append(matchState(expr.CtStateBitNEW, expr.CmpOpEq), accept)...)
		add(f.loadDestination(), notIn(sets[0]), accept)
		add(append(unless, accept)...)
		add(append(matchTCP(), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...)
		return add
	}
	add := refuse("untranslated", nftables.ChainHookInput,
		&expr.Socket{Key: expr.SocketKeyWildcard, Register: first}, // matches nothing if nobody listens
		&expr.Cmp{Op: expr.CmpOpLte, Register: first, Data: []byte{1}})
	add(append(matchProtocol(unix.IPPROTO_UDP), f.portUnreachable())...)
	add(append(matchProtocol(unix.IPPROTO_SCTP), f.portUnreachable())...)
	refuse("unbound", nftables.ChainHookForward, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: linkName(antreaLink)})(f.portUnreachable())
}

// antreaLink is where Antrea (proxyAll) takes packets to VIPs, which it translates after the hook forward.
const antreaLink = "antrea-gw0"

// linkName is a link's name as the kernel compares it (IFNAMSIZ).
func linkName(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

// portUnreachable refuses a packet as if nobody listens (RFC 792, RFC 4443 section 3.1).
func (f family) portUnreachable() *expr.Reject {
	if f.is4 {
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}
}

// matchOutsideWindow matches TCP packets of known connections that conntrack calls invalid, if beginsAnywhere: an
// unknown one's, with ACK and neither FIN, SYN nor RST, begins a new one (tcp_conntracks in nf_conntrack_proto_tcp.c).
func matchOutsideWindow() []expr.Any {
	return slices.Concat(matchTCP(), matchState(expr.CtStateBitINVALID, expr.CmpOpNeq),
		matchFlags(1|2|4|16, expr.CmpOpEq, 16))
}

// beginsAnywhere reports whether conntrack follows connections from their midst: nf_conntrack_tcp_loose is not 0, or
// unknown, as rules will load conntrack.
func beginsAnywhere() bool {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
	return err != nil || strings.TrimSpace(string(b)) != "0"
}
