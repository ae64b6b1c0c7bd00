package nft

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/heraldvip/herald/pkg/vip"
)

// A packet as the rules of egress see it.
type packet struct {
	from, to netip.Addr
	answer   bool   // of a connection that the other side began
	status   uint32 // of the connection, as conntrack has it
}

// evaluate returns what a rule does with p: the name of a verdict map that has its source, "accept", or "" if it goes on. in says whether a set has an address.
func (p packet) evaluate(t *testing.T, f family, rule []expr.Any, in func(set string, a netip.Addr) bool) string {
	t.Helper()
	var register []byte // the first
	for _, e := range rule {
		switch e := e.(type) {
		case *expr.Ct:
			switch e.Key {
			case expr.CtKeyDIRECTION:
				register = []byte{0}
				if p.answer {
					register[0] = 1
				}
			case expr.CtKeySTATUS:
				register = binaryutil.NativeEndian.PutUint32(p.status)
			default:
				t.Fatalf("unknown key %v", e.Key)
			}
		case *expr.Bitwise:
			register = bytes.Clone(register)
			for i := range register {
				register[i] &= e.Mask[i]
			}
		case *expr.Cmp:
			if bytes.Equal(register, e.Data) != (e.Op == expr.CmpOpEq) {
				return ""
			}
		case *expr.Payload:
			register = p.from.AsSlice()
			if e.Offset == f.destination {
				register = p.to.AsSlice()
			}
		case *expr.Lookup:
			a, _ := netip.AddrFromSlice(register)
			switch {
			case !in(e.SetName, a):
				return ""
			case e.IsDestRegSet:
				return e.SetName
			}
		case *expr.Verdict:
			return "accept"
		default:
			t.Fatalf("unknown expression %T", e)
		}
	}
	return ""
}

// What a pod begins goes by way of the owner of its VIP. What it answers does not, to whomever: its own node has translated the destination of
// the connection (a node port, another VIP, one that was here before), and the owner knows nothing of it.
func TestAnswersAreNoEgress(t *testing.T) {
	const sourceTranslated, destinationTranslated = 1 << 4, 1 << 5 // IPS_SRC_NAT, IPS_DST_NAT
	for i, addrs := range [][3]string{{"10.1.1.2", "10.1.2.3", "198.51.100.7"}, {"fd01::2", "fd01:0:0:1::3", "2001:db8::7"}} {
		f := families[i]
		pod, other, outside := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), netip.MustParseAddr(addrs[2])
		in := func(set string, a netip.Addr) bool {
			return set == "internal" && a == other || set == "elsewhere" && a == pod
		}
		rules := f.egressPrerouting(egressSets(f, []vip.Egress{}))
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
			got := ""
			for _, rule := range rules {
				if got = x.evaluate(t, f, rule, in); got != "" {
					break
				}
			}
			if got != x.want {
				t.Errorf("%s: %s: %q, want %q", f.name, x.name, got, x.want)
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
		if EgressMark&bits != 0 {
			t.Errorf("the mark %#x is one of %s", EgressMark, who)
		}
	}
}
