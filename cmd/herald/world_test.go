package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestControlPlaneOfOtherNodes: what herald drain and herald explain say of the control plane's VIP follows from the nodes with cp_enable: be they of an
// earlier version, which does not say which lease it has, or others than those with Services, which are announced in another way. Only cp1's API server
// is ready.
func TestControlPlaneOfOtherNodes(t *testing.T) {
	const arp, bgp, election, old, named = `"arp":true`, `"bgp":true`, `,"election":true`, "", `,"controlPlaneLease":"kube-system/cp-lock"`
	for _, tt := range []struct {
		name     string
		lease    string // that cp1 has; "": none
		method   string // of the control plane
		cp1, cp2 string // which lease they publish
		services string // method of Services, on another node
	}{
		{"all are of an earlier version", "plndr-cp-lock", arp, old, old, ""},
		{"the first is of an earlier version", "cp-lock", arp, old, named, ""},
		{"by ARP, and Services by ARP", "cp-lock", arp, named, named, arp + election},
		{"by ARP, and Services by BGP", "cp-lock", arp, named, named, bgp},
		{"by ARP, and Services by BGP, each from one node", "cp-lock", arp, named, named, bgp + election},
		{"by BGP, and Services by ARP", "", bgp, named, named, arp + election},
		{"by a routing table, and Services by ARP", "", `"routingTable":198`, named, named, arp},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := func(name string, ready bool, options string) *coordinationv1.Lease {
				return nodeLease(name, -time.Since(noon), fmt.Sprintf(`%s,"defaultInterface":"eth0","apiServerReady":%t,"options":{%s}}`, strings.TrimSuffix(linkUp, "}"), ready, options))
			}
			const address = `,"controlPlane":["10.0.0.100"]`
			s := kube.Snapshot{Leases: []*coordinationv1.Lease{node("cp1", true, tt.method+address+tt.cp1), node("cp2", false, tt.method+address+tt.cp2)}}
			if tt.services != "" {
				s.Leases = append(s.Leases, node("a1", false, `"services":true,`+tt.services))
				web := serviceWith("web", "10.0.0.1", "10.0.0.1")
				web.Endpoints = vip.Endpoints{Ready: []string{"a1"}}
				s.Services = []vip.Service{web}
			}
			if tt.lease != "" {
				s.Leases = append(s.Leases, owns("kube-system/"+tt.lease, "cp1", "", ""))
			}
			var b strings.Builder
			if check.OK(t, newExplainer(s, nil, time.Now()).writeNode(&b, "cp1", "")); !strings.Contains(b.String(), "carries it  NO OTHER NODE MAY CARRY IT") || strings.Count(b.String(), "default/web") != len(s.Services) {
				t.Error(b.String())
			}
			d, ctx := newTestDrain(t, s)
			d.node = "cp1"
			d.mark = func(context.Context, string) error { t.Error("the node is drained"); return nil }
			const want = "nothing was done: no other node may carry the control plane's VIP ("
			if err := d.drain(ctx); !strings.HasPrefix(text(err), want) || !strings.Contains(text(err), "cp2: its own API server is not ready") {
				t.Errorf("%v", err)
			}
		})
	}
}
