package nft

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// These tests evaluate rules without a kernel, as nf_tables_core does: what others send for which the tests in namespaces have no sender.

// A packet as rules see it.
type packet struct {
	from, to  netip.Addr
	hops      byte // TTL
	protocol  byte
	transport []byte // its header
	state     uint32 // of its connection, by conntrack (ct state)
	status    uint32 // likewise (ct status)
	answer    bool   // of a connection that the other side began
}

// header is the network header, of which rules see the addresses and the hop limit.
func (p packet) header(f family) []byte {
	b := make([]byte, 40)
	b[f.hopLimit] = p.hops
	copy(b[f.source:], p.from.AsSlice())
	copy(b[f.destination:], p.to.AsSlice())
	return b
}

// A machine evaluates rules for one packet that has come by the link of index 1.
type machine struct {
	t         *testing.T
	family    family
	sets      map[string]map[string][]byte // by the name of a set: its elements, of which maps have a value
	registers [64]byte
	header    []byte // changed by rules
}

// register is the registers from one on: NFT_REG_1 begins where NFT_REG32_00 does.
func (m *machine) register(n uint32) []byte {
	if n >= unix.NFT_REG32_00 {
		return m.registers[4*(n-unix.NFT_REG32_00):]
	}
	return m.registers[16*(n-unix.NFT_REG_1):]
}

// run returns what rules do with p: "accept", "sent to ADDRESS", the name of a verdict map that has an element for it, or "" if none does anything.
func (m *machine) run(p packet, rules [][]expr.Any) string {
	m.header = p.header(m.family)
	for _, rule := range rules {
		m.registers = [64]byte{}
		if done := m.evaluate(p, rule); done != "" {
			return done
		}
	}
	return ""
}

// evaluate is run for one rule.
func (m *machine) evaluate(p packet, rule []expr.Any) (done string) {
	m.t.Helper()
	for _, e := range rule {
		switch e := e.(type) {
		case *expr.Meta:
			copy(m.register(e.Register), map[expr.MetaKey][]byte{expr.MetaKeyL4PROTO: {p.protocol, 0, 0, 0}, expr.MetaKeyIIF: binaryutil.NativeEndian.PutUint32(1)}[e.Key])
		case *expr.Ct:
			answer := []byte{0, 0, 0, 0}
			if p.answer {
				answer[0] = 1
			}
			copy(m.register(e.Register), map[expr.CtKey][]byte{
				expr.CtKeySTATE: binaryutil.NativeEndian.PutUint32(p.state), expr.CtKeySTATUS: binaryutil.NativeEndian.PutUint32(p.status), expr.CtKeyDIRECTION: answer,
			}[e.Key])
		case *expr.Payload:
			from := m.header
			if e.Base == expr.PayloadBaseTransportHeader {
				from = p.transport
			}
			if e.OperationType == expr.PayloadWrite {
				copy(from[e.Offset:], m.register(e.SourceRegister)[:e.Len])
				continue
			}
			if int(e.Offset+e.Len) > len(from) {
				return ""
			}
			clear(m.register(e.DestRegister)[:(e.Len+3)/4*4])
			copy(m.register(e.DestRegister), from[e.Offset:][:e.Len])
		case *expr.Bitwise:
			for i := range e.Len {
				m.register(e.DestRegister)[i] = m.register(e.SourceRegister)[i]&e.Mask[i] ^ e.Xor[i]
			}
		case *expr.Immediate:
			copy(m.register(e.Register), e.Data)
		case *expr.Cmp:
			c := bytes.Compare(m.register(e.Register)[:len(e.Data)], e.Data)
			if !map[expr.CmpOp]bool{expr.CmpOpEq: c == 0, expr.CmpOpNeq: c != 0, expr.CmpOpLt: c < 0, expr.CmpOpGt: c > 0}[e.Op] {
				return ""
			}
		case *expr.Lookup:
			found := false
			for key, value := range m.sets[e.SetName] {
				if string(m.register(e.SourceRegister)[:len(key)]) == key {
					found = true
					if value != nil {
						copy(m.register(e.DestRegister), value)
					}
					break
				}
			}
			switch {
			case !found:
				return ""
			case e.IsDestRegSet && e.DestRegister == 0:
				return e.SetName
			}
		case *expr.Dup:
			a, _ := netip.AddrFromSlice(m.register(e.RegAddr)[:m.family.addr.Bytes])
			done = "sent to " + a.String()
		case *expr.Verdict:
			if e.Kind == expr.VerdictDrop {
				return done
			}
			return "accept"
		case *expr.Counter:
		default:
			m.t.Fatalf("unknown expression %T", e)
		}
	}
	return ""
}

// elements is a set's elements as a machine has them.
func elements(all []nftables.SetElement) map[string][]byte {
	set := make(map[string][]byte)
	for _, x := range all {
		set[string(x.Key)] = x.Val
	}
	return set
}

// What a pod begins goes by way of the owner of its VIP. What it answers does not, to whomever: its own node has translated the destination of
// the connection (a node port, another VIP, one that was here before), and the owner knows nothing of it.
func TestAnswersAreNoEgress(t *testing.T) {
	const sourceTranslated, destinationTranslated = 1 << 4, 1 << 5 // IPS_SRC_NAT, IPS_DST_NAT
	for i, addrs := range [][3]string{{"10.1.1.2", "10.1.2.3", "198.51.100.7"}, {"fd01::2", "fd01:0:0:1::3", "2001:db8::7"}} {
		f := families[i]
		pod, other, outside := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), netip.MustParseAddr(addrs[2])
		m := &machine{t: t, family: f, sets: map[string]map[string][]byte{"internal": {string(other.AsSlice()): nil}, "elsewhere": {string(pod.AsSlice()): nil}}}
		for _, x := range []struct {
			name string
			packet
			want string
		}{
			{"what a pod sends", packet{from: pod, to: outside}, "elsewhere"},
			{"what another pod sends", packet{from: other, to: outside}, ""},
			{"to a pod", packet{from: pod, to: other}, "accept"},
			{"of a connection that began before", packet{from: pod, to: outside, status: sourceTranslated}, "accept"},
			{"an answer by way of a node port", packet{from: pod, to: outside, answer: true, status: destinationTranslated}, "accept"},
			{"an answer to who reaches pods directly", packet{from: pod, to: outside, answer: true}, "accept"},
			{"from outside", packet{from: outside, to: pod}, ""},
		} {
			check.Equal(t, m.run(x.packet, f.egressPrerouting(egressSets(f, nil))), x.want, "%s: %s", f.name, x.name)
		}
	}
}

// The former owner of a VIP gets what says that its packets are too large: their connections would get stuck.
func TestTooLargeIsSentOn(t *testing.T) {
	const invalid, established, related, begins = 1, 2, 4, 8 // NF_CT_STATE_BIT
	tcp := func(flags byte) []byte { return append(make([]byte, 13), flags, 0, 0, 0, 0, 0, 0) }
	for i, addrs := range [][5]string{{"10.0.0.200", "10.0.0.2", "10.0.0.3", "198.51.100.7", "10.0.0.201"}, {"fd00::200", "fd00::2", "fd00::3", "2001:db8::7", "fd00::201"}} {
		f, protocol, tooLarge, unreachable := families[i], byte(unix.IPPROTO_ICMP), []byte{3, 4}, []byte{3, 1}
		if !f.is4 {
			protocol, tooLarge, unreachable = unix.IPPROTO_ICMPV6, []byte{2, 0}, []byte{1, 0}
		}
		a, hop, again, router, other := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), netip.MustParseAddr(addrs[2]), netip.MustParseAddr(addrs[3]), netip.MustParseAddr(addrs[4])
		m := &machine{t: t, family: f, sets: make(map[string]map[string][]byte)}
		sets := formerOwners.maps(f, nil)
		for i, all := range formerOwnerElements(f, []vip.FormerOwner{{Addr: a, Link: "lo", NextHop: hop, Again: again}}) { // lo has the index 1
			m.sets[sets[i].Name] = elements(all)
		}
		for _, x := range []struct {
			name string
			packet
			want string
		}{
			{"of a connection", packet{protocol: unix.IPPROTO_TCP, transport: tcp(16), state: begins, hops: 60}, "sent to " + hop.String()},
			{"the end of a connection", packet{protocol: unix.IPPROTO_TCP, transport: tcp(1 | 16), state: invalid, hops: 60}, "sent to " + hop.String()},
			{"a reset", packet{protocol: unix.IPPROTO_TCP, transport: tcp(4), state: invalid, hops: 60}, "sent to " + hop.String()},
			{"outside the window of a connection that is here", packet{protocol: unix.IPPROTO_TCP, transport: tcp(8 | 16), state: invalid, hops: 60}, "accept"},
			{"the same, and it has been sent on by another", packet{protocol: unix.IPPROTO_TCP, transport: tcp(16), state: invalid, hops: 14}, "accept"},
			{"that begins one", packet{protocol: unix.IPPROTO_TCP, transport: tcp(2), state: invalid, hops: 60}, ""},
			{"too large", packet{protocol: protocol, transport: tooLarge, state: invalid, hops: 60}, "sent to " + hop.String()},
			{"too large, and it has been sent on by another", packet{protocol: protocol, transport: tooLarge, state: invalid, hops: 14}, "sent to " + again.String()},
			{"too large, and the way has ended", packet{protocol: protocol, transport: tooLarge, state: invalid, hops: 1}, ""},
			{"too large, of a connection that is here", packet{protocol: protocol, transport: tooLarge, state: related, hops: 60}, ""},
			{"another error", packet{protocol: protocol, transport: unreachable, state: invalid, hops: 60}, ""},
			{"of UDP", packet{protocol: unix.IPPROTO_UDP, transport: slices.Concat(tooLarge, make([]byte, 6)), state: established, hops: 60}, ""},
			{"to another VIP", packet{to: other, protocol: protocol, transport: tooLarge, state: invalid, hops: 60}, ""},
		} {
			if x.from = router; !x.to.IsValid() {
				x.to = a
			}
			got := m.run(x.packet, f.formerOwnerRules(sets, true))
			check.Equal(t, got, x.want, "%s: %s", f.name, x.name)
			if left := m.header[f.hopLimit]; strings.HasPrefix(got, "sent") && left > maxHops {
				t.Errorf("%s: %s: %d hops are left, want %d at most", f.name, x.name, left, maxHops)
			}
		}
	}
}

// Programs that nodes commonly have use other bits of marks.
func TestEgressMarkIsNobodys(t *testing.T) {
	for who, bits := range map[string]uint32{
		"kube-proxy":                        0xc000,     // KUBE-MARK-MASQ, KUBE-MARK-DROP
		"the CNI plugin portmap (hostPort)": 1 << 13,    // markMasqBit
		"Calico":                            0xffff0000, // IptablesMarkMask
		"Tailscale":                         0xff0000,
	} {
		check.Equal(t, vip.EgressMark&bits, 0, "bits of the mark %#x that are of %s", vip.EgressMark, who)
	}
}

// Of elements with one key the first counts: with both the kernel would refuse the whole table.
func TestTwins(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	got := withoutTwins(translationElements(families[0], []vip.Translation{
		{Addr: a, Port: 1, To: netip.MustParseAddr("10.0.0.2")}, {Addr: a, Port: 1, To: netip.MustParseAddr("10.0.0.3")},
		{Addr: a, Port: 2, To: netip.MustParseAddr("10.0.0.3")},
	})[0])
	if len(got) != 2 || got[0].Val[3] != 2 || got[1].Val[3] != 3 {
		t.Errorf("got %v", got)
	}
}
