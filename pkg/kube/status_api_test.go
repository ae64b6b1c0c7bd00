package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

func (r *rig) haveStatus(t testing.TB, want vip.Status) {
	t.Helper()
	r.bell.until(t, fmt.Sprintf("status %+v", want), func() bool {
		have, err := r.Statuses().Set(t.Context(), []vip.Status{want})
		if err != nil {
			t.Fatal(err)
		}
		return len(have) == 1
	})
}

func TestStatusIsCorrected(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{})
	run(t, r, r.Statuses())
	r.create(t, ns, "web", "192.168.7.106")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.106"), IPMode: vip.ModeProxy, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
	r.haveStatus(t, want)
	for _, patch := range []string{
		`{"status":{"loadBalancer":{"ingress":[{"ip":"192.168.7.66"}]}}}`,
		`{"status":{"loadBalancer":{"ingress":null}}}`,
		`{"metadata":{"annotations":{"kube-vip.io/vipHost":"elsewhere"}}}`,
	} {
		api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web/status", patch)
		r.bell.until(t, "the foreign status", func() bool { have, _ := r.Statuses().Set(t.Context(), []vip.Status{want}); return len(have) == 0 })
		r.haveStatus(t, want)
	}
	if n := r.log.count("level=WARN", "somebody else changed the status"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

func TestRequestsOfAStatus(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{})
	run(t, r, r.Statuses())
	r.bell.until(t, "Synced", r.Synced)
	const n = 50
	var want []vip.Status
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		a := netip.AddrFrom4([4]byte{192, 168, 8, byte(i)})
		r.create(t, ns, name, a.String())
		want = append(want, vip.Status{Service: vip.Key{Namespace: ns, Name: name}, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: a, IPMode: vip.ModeVIP}}})
	}
	all := func() bool {
		have, _ := r.Statuses().Set(t.Context(), want)
		return len(have) == n
	}
	r.bell.until(t, "all statuses", all)
	for range 20 {
		if !all() {
			t.Fatal("a status got lost")
		}
	}
	// The watch may show a status before the request that wrote it has ended.
	for patience := time.Now().Add(5 * time.Second); sum(t, r.Collectors(), "herald_status_writes_total", "written") < n && time.Now().Before(patience); {
		time.Sleep(5 * time.Millisecond)
	}
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != n {
		t.Errorf("%v requests for %d statuses", got, n)
	}
	if got := sum(t, r.Collectors(), "herald_status_writes_total", "written"); got != n {
		t.Errorf("herald_status_writes_total{written} is %v, want %d", got, n)
	}
}

func TestNoUpdates(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{NoUpdates: true})
	run(t, r, r.Statuses())
	r.create(t, ns, "web", "192.168.7.107")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := []vip.Status{{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.107"), IPMode: vip.ModeVIP}}}}
	if have, err := r.Statuses().Set(t.Context(), want); len(have) != 1 || err != nil {
		t.Errorf("Set: %v, %v; nobody should wait for what is not to be done", have, err)
	}
	// What comes later in the same cache shows that nothing came before it.
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"Proxy"}}}`)
	r.bell.until(t, "the change", func() bool { return r.service(key).IPMode == vip.ModeProxy })
	if s := r.service(key); s.VIPHost != "" || len(s.Ingress) != 0 {
		t.Errorf("host %q, ingress %v were written", s.VIPHost, s.Ingress)
	}
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != 0 {
		t.Errorf("%v requests were sent", got)
	}
}

func TestStatusPreconditions(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{})
	run(t, r)
	r.create(t, ns, "web", "192.168.7.110")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.service(key) != nil })
	want := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.110"), IPMode: vip.ModeVIP}}}
	now := r.current(key)
	old := *now
	old.version = "1"
	if got, err := r.Statuses().write(t.Context(), &old, want); got != conflict {
		t.Errorf("an old version: outcome %d, %v; want a conflict", got, err)
	}
	if got, err := r.Statuses().write(t.Context(), now, want); got != written || err != nil {
		t.Errorf("outcome %d, %v; want written", got, err)
	}
	x := *now
	x.Key.Name = "nothing"
	other := want
	other.Service.Name = "nothing"
	if got, _ := r.Statuses().write(t.Context(), &x, other); got != gone {
		t.Errorf("no such Service: outcome %d", got)
	}
	bad := want
	bad.Ingress = []vip.Ingress{{Addr: want.Ingress[0].Addr, IPMode: "Nonsense"}}
	r.bell.until(t, "the status", func() bool { return r.service(key).VIPHost == "n1" })
	if got, err := r.Statuses().write(t.Context(), r.current(key), bad); got != rejected || err == nil {
		t.Errorf("an ipMode that does not exist: outcome %d, %v; want rejected", got, err)
	}
}

func TestClearedAfterTypeChange(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{})
	run(t, r, r.Statuses())
	r.create(t, ns, "web", "192.168.7.111")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.service(key) != nil })
	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.111"), IPMode: vip.ModeVIP}}})
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"spec":{"type":"ClusterIP"}}`)
	r.bell.until(t, "the type", func() bool { s := r.service(key); return s != nil && !s.LoadBalancer && s.VIPHost == "n1" })
	r.haveStatus(t, vip.Status{Service: key})
	if s := r.service(key); s != nil {
		t.Errorf("still listed: %+v", s)
	}
	if got := api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""); strings.Contains(got, "vipHost") || strings.Contains(got, `"ingress":[`) {
		t.Errorf("still marked: %s", got)
	}
}
