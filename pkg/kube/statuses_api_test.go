package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// pending is how many of these Statuses the cache does not show.
func (r *clusterTest) pending(want ...vip.Status) int {
	r.Statuses.Put(want)
	var w vip.World
	r.Statuses.Observe(&w)
	return w.StatusesPending
}

// haveStatus has a status written and waits until the cache shows it.
func (r *clusterTest) haveStatus(t testing.TB, want vip.Status) {
	t.Helper()
	r.poked.until(t, fmt.Sprintf("status %+v", want), func() bool { return r.pending(want) == 0 })
}

// TestStatusIsCorrected: what somebody else writes is put right, and logged.
func TestStatusIsCorrected(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	check.Run(t, r.Statuses)
	r.create(t, ns, "web", "192.168.7.106")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.106"),
		IPMode: vip.ModeProxy, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
	r.haveStatus(t, want)
	for _, patch := range []string{
		`{"status":{"loadBalancer":{"ingress":[{"ip":"192.168.7.66"}]}}}`,
		`{"status":{"loadBalancer":{"ingress":null}}}`,
		`{"metadata":{"annotations":{"kube-vip.io/vipHost":"elsewhere"}}}`,
	} {
		api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web/status", patch)
		r.poked.until(t, "the foreign status", func() bool { return r.pending(want) == 1 })
		r.haveStatus(t, want)
	}
	if n := r.log.count("level=WARN", "somebody else changed the status"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
}

// TestRequestsOfAStatus: a status costs one request, and none when the cache shows it.
func TestRequestsOfAStatus(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	check.Run(t, r.Statuses)
	r.poked.until(t, "Synced", r.Synced)
	const n = 50
	var want []vip.Status
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		a := netip.AddrFrom4([4]byte{192, 168, 8, byte(i)})
		r.create(t, ns, name, a.String())
		want = append(want, vip.Status{Service: vip.Key{Namespace: ns, Name: name}, VIPHost: "n1",
			Ingress: []vip.Ingress{{Addr: a, IPMode: vip.ModeVIP}}})
	}
	all := func() bool { return r.pending(want...) == 0 }
	r.poked.until(t, "all statuses", all)
	for range 20 {
		if !all() {
			t.Fatal("a status got lost")
		}
	}
	// The watch may show a status before the request that wrote it has ended.
	check.True(t, 5*time.Second, "all writes have ended", func() bool {
		return sum(t, r.Collectors(), "herald_status_writes_total", "written") >= n
	})
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != n {
		t.Errorf("%v requests for %d statuses", got, n)
	}
	if got := sum(t, r.Collectors(), "herald_status_writes_total", "written"); got != n {
		t.Errorf("herald_status_writes_total{written} is %v, want %d", got, n)
	}
}

func TestStatusNoUpdates(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{NoUpdates: true})
	check.Run(t, r)
	check.Run(t, r.Statuses)
	r.create(t, ns, "web", "192.168.7.107")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := []vip.Status{{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.107"),
		IPMode: vip.ModeVIP}}}}
	if n := r.pending(want...); n != 0 {
		t.Errorf("%d pending; nobody should wait for what is not to be done", n)
	}
	// What comes later in the same cache shows that nothing came before it.
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"Proxy"}}}`)
	r.poked.until(t, "the change", func() bool { return r.service(key).IPMode == vip.ModeProxy })
	if s := r.service(key); s.VIPHost != "" || len(s.Ingress) != 0 {
		t.Errorf("host %q, ingress %v were written", s.VIPHost, s.Ingress)
	}
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != 0 {
		t.Errorf("%v requests were sent", got)
	}
}

// TestStatusPreconditions: the API server takes a write only for the version that it was made for.
func TestStatusPreconditions(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	r.create(t, ns, "web", "192.168.7.110")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.110"),
		IPMode: vip.ModeVIP}}}
	now := r.Cluster.service(key)
	old := *now
	old.version = "1"
	if got, _, err := r.Statuses.write(t.Context(), &old, wish{status: &want}); got != conflict {
		t.Errorf("an old version: result %s, %v; want a conflict", got, err)
	}
	if got, _, err := r.Statuses.write(t.Context(), now, wish{status: &want}); got != written || err != nil {
		t.Errorf("result %s, %v; want written", got, err)
	}
	x := *now
	x.Key.Name = "nothing"
	other := want
	other.Service.Name = "nothing"
	if got, _, _ := r.Statuses.write(t.Context(), &x, wish{status: &other}); got != notFound {
		t.Errorf("no such Service: result %s", got)
	}
	bad := want
	bad.Ingress = []vip.Ingress{{Addr: want.Ingress[0].Addr, IPMode: "Nonsense"}}
	r.poked.until(t, "the status", func() bool { return r.service(key).VIPHost == "n1" })
	if got, _, err := r.Statuses.write(t.Context(), r.Cluster.service(key), wish{status: &bad}); got != rejected || err == nil {
		t.Errorf("an ipMode that does not exist: result %s, %v; want rejected", got, err)
	}
}

// TestClearedAfterTypeChange: a Service that is no LoadBalancer any more is in the World until its last annotation is removed.
func TestClearedAfterTypeChange(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	check.Run(t, r.Statuses)
	r.create(t, ns, "web", "192.168.7.111")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil })
	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1",
		Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.111"), IPMode: vip.ModeVIP}}})
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"spec":{"type":"ClusterIP"}}`)
	r.poked.until(t, "the type", func() bool {
		s := r.service(key)
		return s != nil && !s.LoadBalancer && s.VIPHost == "n1"
	})
	r.haveStatus(t, vip.Status{Service: key})
	if s := r.service(key); s != nil {
		t.Errorf("still listed: %+v", s)
	}
	if got := api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""); strings.Contains(got, "vipHost") ||
		strings.Contains(got, `"ingress":[`) {
		t.Errorf("still marked: %s", got)
	}
}
