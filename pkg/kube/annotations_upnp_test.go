package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
)

func TestForwardAnnotations(t *testing.T) {
	one := []vip.Port{{Protocol: "TCP", Port: 53}, {Protocol: "UDP", Port: 53}}
	two := []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "TCP", Port: 443}}
	hour := func(change ...func(*vip.Forward)) *vip.Forward {
		f := &vip.Forward{Lease: time.Hour}
		for _, c := range change {
			c(f)
		}
		return f
	}
	to := func(ports map[uint16]uint16) func(*vip.Forward) { return func(f *vip.Forward) { f.External = ports } }
	tests := []struct {
		on, lease, external string
		ports               []vip.Port
		want                *vip.Forward
		wrong               string // part of the sentence
	}{
		{"", "5m", "any", one, nil, ""},
		{"false", "5m", "rubbish", one, nil, ""},
		{"yes", "", "", one, nil, "neither true nor false"},
		{"true", "", "", one, hour(), ""},
		{"TRUE", " 5m ", "", one, hour(func(f *vip.Forward) { f.Lease = 5 * time.Minute }), ""},
		{"true", "0", "", one, hour(func(f *vip.Forward) { f.Lease = 0 }), ""},
		{"true", "7200", "", one, hour(func(f *vip.Forward) { f.Lease = 2 * time.Hour }), ""},
		{"true", "1s", "", one, hour(), "30s to 168h0m0s"},
		{"true", "-1h", "", one, hour(), "The default, 1h0m0s, is used"},
		{"true", "99999999999999999999h", "", one, hour(), "upnp-lease-duration"},
		{"true", "", "any", one, nil, "external-port"},
		{"true", "", "5353", one, hour(to(map[uint16]uint16{53: 5353})), ""},
		{"true", "", "5353", two, nil, "80=8080"},
		{"true", "", "80=8080, 443 = 8443", two, hour(to(map[uint16]uint16{80: 8080, 443: 8443})), ""},
		{"true", "", "80=8080", two, hour(to(map[uint16]uint16{80: 8080})), ""},
		{"true", "", "80=8080,80=8081", two, nil, "No gateway is asked"},
		{"true", "", "22=8080", two, nil, "No gateway is asked"},
		{"true", "", "80=0", two, nil, "No gateway is asked"},
		{"true", "", "80=65536", two, nil, "No gateway is asked"},
		{"true", "", "5353,5354", one, nil, "No gateway is asked"},
		{"true", "", "\x7f;$(reboot)", one, nil, "No gateway is asked"},
	}
	for _, tt := range tests {
		t.Run(tt.on+" "+tt.lease+" "+tt.external, func(t *testing.T) {
			s := vip.Service{Ports: tt.ports}
			readAnnotations(&s, map[string]string{upnpKey: tt.on, upnpLeaseKey: tt.lease, externalPortKey: tt.external}, nil, "")
			same(t, "", tt.want, s.Forward)
			got := strings.Join(s.Invalid, " ")
			if tt.wrong == "" && got != "" || !strings.Contains(got, tt.wrong) {
				t.Errorf("got %q, want %q", got, tt.wrong)
			}
		})
	}
}

// TestGatewayAddressIsNoVIP: what a gateway has on its far side is no address to announce.
func TestGatewayAddressIsNoVIP(t *testing.T) {
	v, x := vip.Ingress{Addr: addrs("10.0.0.50")[0], IPMode: vip.ModeVIP}, vip.Ingress{Addr: addrs("11.22.33.1")[0], IPMode: vip.ModeProxy}
	alone := v
	alone.IPMode = vip.ModeProxy
	for _, ingress := range [][]vip.Ingress{{v, x}, {alone}} {
		r := &cachedService{}
		r.Ingress = ingress
		annotationReader{&r.Service, nil}.readAddresses("")
		same(t, fmt.Sprint(ingress), addrs("10.0.0.50"), r.Addresses)
	}
}

// TestStatusWithoutModes: an API server that drops ipMode is sent VIPs only.
func TestStatusWithoutModes(t *testing.T) {
	key := vip.Key{Namespace: "default", Name: "web"}
	r := &cachedService{}
	s := newStatuses(Options{}, func(vip.Key) *cachedService { return r }, newMetrics())
	v, x := vip.Ingress{Addr: addrs("10.0.0.50")[0], IPMode: vip.ModeVIP},
		vip.Ingress{Addr: addrs("11.22.33.1")[0], IPMode: vip.ModeProxy}
	for _, tt := range []struct {
		dropsIPMode   bool
		want, pending []vip.Ingress
	}{
		{false, []vip.Ingress{v, x}, []vip.Ingress{v, x}},
		{true, []vip.Ingress{v, x}, []vip.Ingress{v}},
		{true, []vip.Ingress{x}, []vip.Ingress{x}}, // its VIP has that mode
	} {
		s.dropsIPMode.Store(tt.dropsIPMode)
		want := []vip.Status{{Service: key, VIPHost: "n1", Ingress: tt.want}}
		s.Put(want)
		if d := cmp.Diff(tt.pending, s.states[key].errands[ofStatus].want.status.Ingress, compareNets); d != "" {
			t.Errorf("%v of %v: -want +got:\n%s", tt.dropsIPMode, tt.want, d)
		}
	}
}
