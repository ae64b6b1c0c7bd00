package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestPublishedOptions: other nodes know of the VIP of the control plane, and whether Services are announced.
func TestPublishedOptions(t *testing.T) {
	for _, tt := range []struct{ env, want string }{
		{"cp_enable=true vip_arp=true address=192.0.2.10", `{"arp":true,"lease":"kube-system/plndr-svcs-lock","classStrict":true,"controlPlane":["192.0.2.10"],"controlPlaneLease":"kube-system/plndr-cp-lock"}`},
		{"svc_enable=true vip_routingtable=true vip_routingtableid=7 svc_pools=", `{"services":true,"routingTable":7,"lease":"kube-system/plndr-svcs-lock","classStrict":true}`},
		{"svc_enable=true vip_arp=true address=192.0.2.10 svc_election=true svc_pools=", `{"services":true,"arp":true,"election":true,"classStrict":true}`},
	} {
		cfg, _, err := config.Parse(config.Sources{Env: strings.Fields(tt.env), Hostname: "n1"})
		check.OK(t, err)
		o := publishedOptions(cfg)
		o.Class, o.ClassStrict = "", true
		if got := string(check.Value(json.Marshal(o))(t)); got != tt.want {
			t.Errorf("%s: got %s", tt.env, got)
		}
	}
}

// TestNoServicesNode: what commands say of Services follows from the nodes with svc_enable, though one that has cp_enable alone is the first by name.
func TestNoServicesNode(t *testing.T) {
	with := func(more string) string { return strings.TrimSuffix(linkUp, "}") + more + "}" }
	cp1 := nodeLease("cp1", time.Second, with(`,"options":{"arp":true}`))
	n1 := nodeLease("n1", time.Second, with(`,"serviceAddresses":"any","options":{"services":true,"arp":true,"election":true,"pools":"kube-system/kubevip"}`))
	web := serviceWith("web", "10.0.0.1", "")
	web.Endpoints = vip.Endpoints{Ready: []string{"n1"}}
	left := serviceWith("left", "10.0.0.2", "10.0.0.2")
	left.VIPHost = "cp1"
	s := kube.Snapshot{Services: []vip.Service{left, web}, Leases: []*coordinationv1.Lease{cp1, n1}, Nodes: []vip.Node{{Name: "cp1"}, {Name: "n1"}}}
	got := explained(t, s, "web")
	for _, want := range []string{"cp1   no            its Herald announces no Services (svc_enable is false there)\n", "n1    yes"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	var b strings.Builder
	check.OK(t, newExplainer(s, nil, noon).writeNode(&b, "cp1", ""))
	if !strings.Contains(b.String(), "VIPs of Services: its Herald announces no Services") || !strings.Contains(b.String(), "could carry 0 more") {
		t.Error(b.String())
	}
	if k := publishedPools(s); k.Name != "kubevip" {
		t.Errorf("the ConfigMap of pools is %s", k)
	}
	if got := whatMayBeAskedFor(s); !strings.Contains(got, "svc_addresses=any") {
		t.Error(got)
	}
	if owner, _ := newStatusView(s, noon).owner(&left); owner != "" {
		t.Errorf("a node that announces no Services owns one: %s", owner)
	}
	s.Leases = s.Leases[:1]
	if e, err := newExplainer(s, nil, noon).service(web.Key); err != nil || e.Message != "svc_enable is false" {
		t.Errorf("no node has svc_enable: %+v, %v", e, err)
	}
}
