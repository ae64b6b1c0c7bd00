package kube

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestConditionsAreWritten: with the status or alone, in one request; those of others stay; lastTransitionTime
// changes with the status only; what is to be absent is removed.
func TestConditionsAreWritten(t *testing.T) {
	r, ns := runCluster(t, Options{})
	api := r.api
	r.create(t, ns, "web", "192.168.7.106")
	key := vip.Key{Namespace: ns, Name: "web"}
	const others = `{"type":"example.com/Ready","status":"True","reason":"Ready","message":"of another program","lastTransitionTime":"2020-01-01T00:00:00Z"}`
	const early = "2020-01-02T00:00:00Z"
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web/status", `{"status":{"conditions":[`+others+`,
		{"type":"heraldvip.io/Announced","status":"True","reason":"VIPAnnounced","message":"node n1 announces it","lastTransitionTime":"`+early+`"}]}}`)
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil && len(r.service(key).Conditions) == 1 })
	since := func(c vip.ConditionType) string {
		return r.Cluster.service(key).conditionsSince[c].UTC().Format(time.RFC3339)
	}
	announced := vip.Condition{Type: vip.Announced, Status: vip.ConditionTrue, Reason: vip.VIPAnnounced, Message: "node n2 announces it"}
	allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressSet, Message: "named"}
	want := vip.Status{Service: key, VIPHost: "n2", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.106")}},
		Conditions: []vip.Condition{allocated, announced}}
	r.haveStatus(t, want)
	if since(vip.Announced) != early || since(vip.Allocated) == early {
		t.Errorf("Announced since %s, Allocated since %s", since(vip.Announced), since(vip.Allocated))
	}
	announced.Status, announced.Reason, announced.Message = vip.ConditionFalse, vip.NoEndpoints, "none is ready"
	alone := vip.Status{Service: key, ConditionsOnly: true, Conditions: []vip.Condition{announced}}
	r.haveStatus(t, alone)
	if s := r.Cluster.service(key); since(vip.Announced) == early || s.VIPHost != "n2" || len(s.Ingress) != 1 ||
		!slices.Contains(s.Conditions, allocated) {
		t.Errorf("Announced since %s; %+v", since(vip.Announced), s)
	}
	check.True(t, 5*time.Second, "all writes have ended", func() bool {
		return sum(t, r.Collectors(), "herald_status_writes_total", "written") >= 2
	})
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != 2 {
		t.Errorf("%v requests for 2 changes", got)
	}
	r.haveStatus(t, vip.Status{Service: key, Conditions: []vip.Condition{{Type: vip.Announced}, {Type: vip.Allocated}}})
	if s := r.Cluster.service(key); len(s.Conditions) > 0 || s.VIPHost != "" || len(s.Ingress) > 0 {
		t.Errorf("%+v", s)
	}
	if text := api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""); strings.Contains(text, "heraldvip.io/") ||
		!strings.Contains(text, "of another program") {
		t.Error(text)
	}
}
