package kube

import (
	"fmt"
	"net/netip"
	"testing"

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

func TestStatusNoUpdates(t *testing.T) {
	r, ns := runCluster(t, Options{NoUpdates: true})
	api := r.api
	key := r.web(t, ns, "192.168.7.107")
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
	key := r.web(t, ns, "192.168.7.110")
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
