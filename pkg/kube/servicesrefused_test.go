package kube

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/testing/check"
)

// TestNoServices: with svc_enable=false a node reads the addresses of the API servers, and no Service but theirs. If
// that is refused it holds nothing up, and is warned of nowhere.
func TestNoServices(t *testing.T) {
	api := startAPI(t)
	const leases = `[{"apiGroups":[""],"resources":["nodes"],"verbs":["list","watch"]},{"apiGroups":["networking.k8s.io"],"resources":["servicecidrs"],"verbs":["list","watch"]},
		{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`
	api.allow(t, "narrow", "", leases)
	api.allow(t, "narrow", "default", `[{"apiGroups":[""],"resources":["services"],"resourceNames":["kubernetes"],"verbs":["list","watch"]},
		{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"resourceNames":["kubernetes"],"verbs":["list","watch"]}]`)
	api.allow(t, "nobody", "", leases)
	ns := api.namespace(t)
	// the API server writes none for an address of loopback
	const slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	api.must(t, "POST", slices,
		`{"metadata":{"name":"kubernetes","labels":{"kubernetes.io/service-name":"kubernetes"}},"addressType":"IPv4","ports":[{"name":"https","port":6443}],"endpoints":[{"addresses":["192.0.2.9"]}]}`)
	t.Cleanup(func() { api.do("DELETE", slices+"/kubernetes", "") })
	for _, tt := range []struct {
		user    string
		servers bool // whether it knows the API servers
	}{{"narrow", true}, {"nobody", false}, {"admin", true}} {
		t.Run(tt.user, func(t *testing.T) {
			r := newClusterTest(t, tt.user, Options{NoServices: true})
			r.create(t, ns, "web-"+tt.user, "192.168.7.111")
			check.Run(t, r)
			r.poked.until(t, "Synced", r.Synced)
			check.True(t, time.Minute, "what may be read is", func() bool {
				service, servers := r.APIService()
				return service.IsValid() == tt.servers && (len(servers) > 0) == tt.servers &&
					(tt.servers || r.services.refused.Load() && r.slices.refused.Load())
			})
			if w := observe(r.Cluster); len(w.Services) > 0 || len(r.services.values) > 1 {
				t.Errorf("Services: %v", r.services.values)
			}
			if n := r.log.count("level=WARN"); n != 0 {
				t.Errorf("%d warnings:\n%s", n, r.log)
			}
		})
	}
}

// forbidden is the answer of the API server to those who lack a right.
var forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))

// TestRefusedThenAnotherError: what is done without since the API server refuses it is not waited for when it then
// answers otherwise, be it by an error.
func TestRefusedThenAnotherError(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	check.OK(t, c.services.Replace(nil, "1"))
	check.OK(t, c.slices.Replace(nil, "1"))
	all := []*watchedResource{&c.nodes.watchedResource, &c.cidrs.watchedResource}
	for range 3 {
		if c.Synced() {
			t.Fatal("synced at once")
		}
		for _, r := range all {
			r.retryDelay(forbidden)
		}
	}
	for _, then := range []func(*watchedResource){
		func(*watchedResource) {},
		func(r *watchedResource) { r.retryDelay(apierrors.NewInternalError(errors.New("etcd is away"))) },
		(*watchedResource).succeeded,
	} {
		for _, r := range all {
			then(r)
		}
		if !c.Synced() {
			t.Error("not synced")
		}
	}
}

// TestSyncedSoon: what a process that starts waits for that is refused. With svc_enable=false that is one refusal of
// Nodes: an owner of the control plane's VIP that was killed makes its first pass in time to renew the address.
func TestSyncedSoon(t *testing.T) {
	lacking := apierrors.NewGenericServerResponse(http.StatusNotFound, "get",
		schema.GroupResource{Resource: "servicecidrs"}, "", "", 0, true)
	for _, tt := range []struct {
		name                     string
		noServices, listed       bool // listed: Services and EndpointSlices are
		nodes, cidrs             error
		nodesRefused, cidrsAsked int // how often
		want                     bool
	}{
		{"no Services, Nodes not asked for", true, false, forbidden, forbidden, 0, 0, false},
		{"no Services, Nodes refused once", true, false, forbidden, forbidden, 1, 0, true},
		{"no Services, an error of the API server", true, false, apierrors.NewInternalError(errors.New("etcd")), forbidden, 3, 3, false},
		{"Services, all refused twice", false, true, forbidden, forbidden, 2, 2, false},
		{"Services, all refused three times", false, true, forbidden, forbidden, 3, 3, true},
		{"Services, no ServiceCIDRs at this API server", false, true, forbidden, lacking, 3, 1, true},
		{"Services are not listed", false, false, forbidden, forbidden, 3, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, poked := time.Now(), time.Duration(0)
				c, err := New(&rest.Config{Host: "https://192.0.2.1:6443"}, Options{
					NodeLeaseNamespace: "kube-system", Node: "n1", NoServices: tt.noServices, Log: slog.New(slog.DiscardHandler),
					Poke: func() { poked = max(1, time.Since(began)) }, PokeLeases: func() {},
				})
				check.OK(t, err)
				if tt.listed {
					check.OK(t, c.services.Replace(nil, "1"))
					check.OK(t, c.slices.Replace(nil, "1"))
				}
				for range tt.nodesRefused {
					c.nodes.ended(t.Context(), tt.nodes)
				}
				for range tt.cidrsAsked {
					c.cidrs.ended(t.Context(), tt.cidrs)
				}
				if got := c.Synced(); got != tt.want {
					t.Errorf("synced: %v, want %v", got, tt.want)
				}
				if tt.want && (poked == 0 || tt.noServices && poked > time.Second) {
					t.Errorf("a pass is made after %v", poked)
				}
			})
		})
	}
}

// TestNoServicesInWorld: with svc_enable=false no pass waits for Services or has any.
func TestNoServicesInWorld(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	c.o.NoServices = true
	if c.Synced() {
		t.Error("synced without Nodes")
	}
	check.OK(t, c.nodes.Replace(nil, "1"))
	kubernetes := clusterIPService("kubernetes", "10.112.0.1")
	check.OK(t, c.services.Replace([]any{kubernetes, loadBalancer("web", "192.0.2.7")}, "1"))
	check.OK(t, c.slices.Replace(nil, "1"))
	if w := observe(c); !w.Synced || len(w.Services) > 0 {
		t.Errorf("synced %v, %v", w.Synced, w.Services)
	}
}

// TestServicesRefusedLater: the right to list Services is taken away from a process that has listed them. It keeps what it had.
func TestServicesRefusedLater(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	for _, f := range []func([]any, string) error{c.services.Replace, c.slices.Replace, c.nodes.Replace, c.cidrs.Replace} {
		check.OK(t, f(nil, "1"))
	}
	check.OK(t, c.services.Add(loadBalancer("web", "192.0.2.7")))
	for range 4 {
		c.services.retryDelay(forbidden)
		c.slices.retryDelay(forbidden)
	}
	if w := observe(c); !w.Synced || len(w.Services) != 1 || w.Services[0].Addresses[0] != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("synced %v, %v", w.Synced, w.Services)
	}
}
