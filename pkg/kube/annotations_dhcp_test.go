package kube

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"
	"github.com/heraldvip/herald/pkg/vip"
)

// A lease is written beside the status, and what is written is what is read. When it is gone the address stays as the one to ask for.
func TestStatusWithDHCPLease(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.edit(serviceKey(0), func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, "0.0.0.0"
			s.Annotations = map[string]string{requestedKey: "10.0.0.99", "example.com/theirs": "stays"}
		})
		advance(time.Second)
		want := statusOf(0)
		want.DHCPLeases = []vip.DHCPLease{{Addr: want.Ingress[0].Addr, Bits: 24, MAC: "02:00:00:00:00:01", Server: "10.0.0.1",
			Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}, {Addr: netip.MustParseAddr("fd00::5"), Bits: 128,
			MAC: "02:00:00:00:00:01"}}
		d.plan(want)
		advance(time.Minute)
		if d.writes(serviceKey(0)) != 1 || d.written() != 1 {
			t.Fatalf("%d writes, %d hold", d.writes(serviceKey(0)), d.written())
		}
		if got := d.at(serviceKey(0)).Annotations[requestedKey]; got != "10.0.0.0,fd00::5" {
			t.Errorf("requestedIP %q", got)
		}
		same(t, "", want.DHCPLeases, readService(d.at(serviceKey(0))).DHCP.Leases)
		want.DHCPLeases[0].Expires = want.DHCPLeases[0].Expires.Add(time.Hour)
		d.plan(want)
		advance(time.Minute)
		if d.writes(serviceKey(0)) != 2 {
			t.Errorf("%d writes after a renewal", d.writes(serviceKey(0)))
		}
		d.edit(serviceKey(0), func(s *corev1.Service) { s.Annotations[dhcpLeaseKey] = "spoilt" })
		advance(time.Minute)
		same(t, "", want.DHCPLeases, readService(d.at(serviceKey(0))).DHCP.Leases)
		d.plan(vip.Status{Service: serviceKey(0)})
		advance(time.Minute)
		got := d.at(serviceKey(0))
		if diff := cmp.Diff(map[string]string{requestedKey: "10.0.0.0,fd00::5", "example.com/theirs": "stays"},
			got.Annotations); diff != "" || len(got.Status.LoadBalancer.Ingress) > 0 {
			t.Errorf("status %v, annotations %s", got.Status, diff)
		}
	})
}
