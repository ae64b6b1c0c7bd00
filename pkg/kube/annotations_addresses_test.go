package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
)

// What a person asks for wins over what Herald gave, in whichever field; of several fields the first counts, and
// whoever wrote another is told of both.
func TestPrecedence(t *testing.T) {
	const (
		metallb = "metallb.io/loadBalancerIPs"
		cilium  = "lbipam.cilium.io/ips"
	)
	given := func(more map[string]string) map[string]string {
		all := map[string]string{addressesKey: "10.0.0.7", allocatedKey: "web"}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		spec        string
		want        string // addresses, source, pools
		superseded  bool
		invalid     string
	}{
		{"given", given(nil), "", "10.0.0.7 " + addressesKey + " web", false, ""},
		{"then the spec", given(nil), "10.0.0.50", "10.0.0.50 spec.loadBalancerIP ", true, ""},
		{"... the same address", given(nil), "10.0.0.7", "10.0.0.7 spec.loadBalancerIP ", true, ""},
		{"... what is no address", given(nil), "x", "10.0.0.7 " + addressesKey + " web", false,
			"As long as spec.loadBalancerIP can't be read the Service keeps 10.0.0.7."},
		{"then MetalLB's", given(map[string]string{metallb: "10.0.0.50"}), "", "10.0.0.50 " + metallb + " ", true, ""},
		{"then Cilium's", given(map[string]string{cilium: "10.0.0.50,fd00::5"}), "", "10.0.0.50,fd00::5 " + cilium + " ", true, ""},
		{"two of a person", map[string]string{addressesKey: "10.0.0.8"}, "10.0.0.50", "10.0.0.8 " + addressesKey + " ", false,
			`spec.loadBalancerIP asks for "10.0.0.50", and has no effect: kube-vip.io/loadbalancerIPs, which comes first, asks for "10.0.0.8". Remove one of them.`},
		{"two that agree", map[string]string{addressesKey: "10.0.0.8, FD00::1"}, "fd00:0::1", "10.0.0.8,fd00::1 " +
			addressesKey + " ", false, ""},
		{"two of a person beside what was given", given(map[string]string{cilium: "10.0.0.8"}), "10.0.0.50", "10.0.0.8 " +
			cilium + " ", true, `spec.loadBalancerIP asks for "10.0.0.50", and has no effect: lbipam.cilium.io/ips, which comes first`},
		{"given beside an own one", map[string]string{addressesKey: "10.0.0.8", allocatedKey: "web", besideKey: "fd00::1"},
			"", "10.0.0.8,fd00::1 " + addressesKey + " web", false, ""},
		{"... of the spec", map[string]string{allocatedKey: "web", besideKey: "fd00::1"}, "10.0.0.8",
			"10.0.0.8,fd00::1 spec.loadBalancerIP web", false, ""},
		{"... then both families are named", map[string]string{addressesKey: "10.0.0.8,fd00::2", allocatedKey: "web",
			besideKey: "fd00::1"}, "", "10.0.0.8,fd00::2 " + addressesKey + " ", true, ""},
		{"... then the own one goes", map[string]string{allocatedKey: "web", besideKey: "fd00::1"}, "", "fd00::1 " +
			besideKey + " web", false, ""},
		{"pools", map[string]string{poolKey: "a", "metallb.io/address-pool": "b"}, "", "  ", false,
			`metallb.io/address-pool asks for "b", and has no effect: heraldvip.io/pool, which comes first, asks for "a"`},
		{"sharing keys", map[string]string{sharingKeyKey: "a", "lbipam.cilium.io/sharing-key": "b"}, "", "  ", false,
			`lbipam.cilium.io/sharing-key asks for "b", and has no effect`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: tt.spec}}
			o.Annotations = tt.annotations
			s := readService(o)
			if d := cmp.Diff(tt.want, vip.JoinAddrs(s.Addresses, ",")+" "+s.Source+" "+s.Allocated); d != "" || s.Superseded != tt.superseded {
				t.Errorf("superseded %v, -want +got:\n%s", s.Superseded, d)
			}
			told := strings.Join(s.Invalid, " ")
			if tt.invalid == "" && told != "" || !strings.Contains(told, tt.invalid) {
				t.Errorf("told %q, want %q", told, tt.invalid)
			}
		})
	}
}
