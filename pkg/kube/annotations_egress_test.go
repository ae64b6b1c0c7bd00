package kube

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		{"limits", map[string]string{egressKey: "true", egressAllowedNetworksKey: "192.168.0.7/16, fd00::/8,10.0.0.1", egressDeniedNetworksKey: "192.168.1.0/24", egressDestinationPortsKey: "80,udp:53, SCTP:9", egressSourcePortsKey: "tcp:3000"},
			&vip.EgressRule{Selector: "app=web", EgressLimits: vip.EgressLimits{AllowedNetworks: networks("192.168.0.0/16 fd00::/8 10.0.0.1/32"), DeniedNetworks: networks("192.168.1.0/24"),
				DestinationPorts: []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}, {Protocol: "SCTP", Port: 9}}, SourcePorts: []vip.Port{{Protocol: "TCP", Port: 3000}}}}, ""},
		{"a network that is none", map[string]string{egressKey: "true", egressAllowedNetworksKey: "10.0.0.0/8,10.0.0.0/33"}, nil,
			`kube-vip.io/egress-allowed-networks is "10.0.0.0/8,10.0.0.0/33": "10.0.0.0/33" is no network; write networks separated by commas, such as 192.168.0.0/16,fd00::/8. Until then what the Service's pods send keeps its source.`},
		{"too many networks", map[string]string{egressKey: "true", egressDeniedNetworksKey: strings.Repeat("10.0.0.0/8,", 64) + "10.0.0.0/8"}, nil, "more than 64 networks"},
		{"a port that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "tcp:0"}, nil,
			`"tcp:0" is no port; write ports separated by commas, such as tcp:443,udp:53. Until then`},
		{"a protocol that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "icmp:8"}, nil, `"icmp:8" is no port`},
		{"too many ports", map[string]string{egressKey: "true", egressSourcePortsKey: strings.Repeat("80,", 64) + "80"}, nil, "more than 64 ports"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s vip.Service
			readAnnotations(&s, tt.annotations, map[string]string{"app": "web"})
			if diff := cmp.Diff(tt.want, s.Egress, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := strings.Join(s.Invalid, "\n"); tt.invalid == "" && got != "" || !strings.Contains(got, tt.invalid) {
				t.Errorf("invalid: %q, want %q", got, tt.invalid)
			}
		})
	}
}
