package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// What a Service says about egress is read with its limits; what can't be read leaves the Service without egress, and its user is told.
func TestEgressAnnotations(t *testing.T) {
	networks := func(text string) (all []netip.Prefix) {
		for _, x := range strings.Fields(text) {
			all = append(all, netip.MustParsePrefix(x))
		}
		return all
	}
	tests := []struct {
		name        string
		annotations map[string]string
		want        *vip.EgressRule
		invalid     string
	}{
		{"not asked for", map[string]string{egressAllowedNetworksKey: "10.0.0.0/8"}, nil, ""},
		{"false", map[string]string{egressKey: "false", egressAllowedNetworksKey: "x"}, nil, ""},
		{"all", map[string]string{egressKey: "true"}, &vip.EgressRule{Selector: "app=web"}, ""},
		{"limits", map[string]string{egressKey: "true", egressAllowedNetworksKey: "192.168.0.7/16, fd00::/8,10.0.0.1",
			egressDeniedNetworksKey: "192.168.1.0/24", egressDestinationPortsKey: "80,udp:53, SCTP:9", egressSourcePortsKey: "tcp:3000"},
			&vip.EgressRule{Selector: "app=web",
				EgressLimits: vip.EgressLimits{AllowedNetworks: networks("192.168.0.0/16 fd00::/8 10.0.0.1/32"),
					DeniedNetworks:   networks("192.168.1.0/24"),
					DestinationPorts: []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}, {Protocol: "SCTP", Port: 9}},
					SourcePorts:      []vip.Port{{Protocol: "TCP", Port: 3000}}}}, ""},
		{"a network that is none", map[string]string{egressKey: "true", egressAllowedNetworksKey: "10.0.0.0/8,10.0.0.0/33"}, nil,
			`kube-vip.io/egress-allowed-networks is "10.0.0.0/8,10.0.0.0/33": "10.0.0.0/33" is no network; write networks separated by commas, such as 192.168.0.0/16,fd00::/8. Until then what the Service's pods send keeps its source.`},
		{"too many networks", map[string]string{egressKey: "true", egressDeniedNetworksKey: strings.Repeat("10.0.0.0/8,",
			64) + "10.0.0.0/8"}, nil, "more than 64 networks"},
		{"a port that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "tcp:0"}, nil,
			`"tcp:0" is no port; write ports separated by commas, such as tcp:443,udp:53. Until then`},
		{"a protocol that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "icmp:8"}, nil, `"icmp:8" is no port`},
		{"too many ports", map[string]string{egressKey: "true", egressSourcePortsKey: strings.Repeat("80,", 64) + "80"}, nil,
			"more than 64 ports"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s vip.Service
			readAnnotations(&s, tt.annotations, map[string]string{"app": "web"}, "")
			same(t, "", tt.want, s.Egress)
			if got := strings.Join(s.Invalid, "\n"); tt.invalid == "" && got != "" || !strings.Contains(got, tt.invalid) {
				t.Errorf("invalid: %q, want %q", got, tt.invalid)
			}
		})
	}
}

// TestEgressSelectorIsBounded: a selector of a megabyte, which each node would keep and send with each list of pods, is refused.
func TestEgressSelectorIsBounded(t *testing.T) {
	o := tenantService(egressKey+"=true\n"+addressesKey+"=10.0.0.1", "", []byte{79}, 0)
	o.Spec.Selector = make(map[string]string)
	for i := range 10000 {
		o.Spec.Selector[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
	}
	s := readService(o)
	if s.Egress != nil || len(s.Invalid) != 1 || !strings.Contains(s.Invalid[0], "spec.selector has 10000 labels") {
		t.Errorf("egress %.200v, %q", s.Egress, s.Invalid)
	}
}

// FuzzEgress: whatever the annotations and the selector say, what is kept is bounded, and sound: nftables takes it as it is.
func FuzzEgress(f *testing.F) {
	f.Add("192.168.0.0/16,fd00::/8", "10.0.0.1", "tcp:443,udp:53", "80", "app", "web")
	f.Add("0.0.0.0/0,::/0", "::ffff:10.0.0.0/104,fe80::1%eth0", "0,65536", ":,sctp:1", "", strings.Repeat("x", 5000))
	f.Add(strings.Repeat("10.0.0.0/8,", 65)+"10.0.0.0/8", "", strings.Repeat("1,", 70), " TCP : 1 ", "a/b", "\x00")
	f.Fuzz(func(t *testing.T, allowed, denied, destination, source, label, value string) {
		o := tenantService(egressKey+"=true", "", nil, 0)
		maps.Copy(o.Annotations, map[string]string{egressAllowedNetworksKey: allowed, egressDeniedNetworksKey: denied,
			egressDestinationPortsKey: destination, egressSourcePortsKey: source})
		o.Spec.Selector = map[string]string{label: value}
		s := readService(o)
		if s.Egress == nil {
			if len(s.Invalid) == 0 {
				t.Error("no egress, and nothing is said")
			}
			return
		}
		for _, list := range [][]netip.Prefix{s.Egress.AllowedNetworks, s.Egress.DeniedNetworks} {
			for _, n := range list {
				if !n.IsValid() || n != n.Masked() || n.Addr().Zone() != "" || n.Addr().Is4In6() || len(list) > maxEgressLimits {
					t.Errorf("networks %v", list)
				}
			}
		}
		for _, list := range [][]vip.Port{s.Egress.DestinationPorts, s.Egress.SourcePorts} {
			for _, p := range list {
				if p.Port == 0 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol) || len(list) > maxEgressLimits {
					t.Errorf("ports %v", list)
				}
			}
		}
		if len(s.Egress.Selector) > maxSelector {
			t.Errorf("a selector of %d bytes", len(s.Egress.Selector))
		}
	})
}
