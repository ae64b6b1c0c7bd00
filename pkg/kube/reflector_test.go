package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestRetryDelay: what is logged, and how long the API server is not asked, for each error that a reflector may see, again and again.
func TestRetryDelay(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("failed to list: %w", err) }
	tests := []struct {
		name    string
		err     error
		delays  []time.Duration // of the first four, and of the hundredth
		warns   int
		refused bool
	}{
		{"nothing", nil, []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"no connection", errors.New("connection refused"), []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"cut off", io.ErrUnexpectedEOF, []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"version too old", wrap(apierrors.NewResourceExpired("too old")), []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"forbidden", wrap(apierrors.NewForbidden(services, "", errors.New("no"))),
			[]time.Duration{refusedMin, 2 * refusedMin, 4 * refusedMin, 8 * refusedMin, refusedMax}, 1, true},
		{"absent", wrap(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", services, "", "", 0, true)),
			[]time.Duration{refusedMin, 2 * refusedMin, missingRetry, missingRetry, missingRetry}, 0, true},
		{"unauthorized", wrap(apierrors.NewUnauthorized("who are you")), []time.Duration{0, 0, 0, 0, 0}, 1, false},
		{"broken", wrap(apierrors.NewInternalError(errors.New("etcd"))), []time.Duration{0, 0, 0, 0, 0}, 1, false},
		{"overloaded", wrap(apierrors.NewTooManyRequests("later", 1)), []time.Duration{0, 0, 0, 0, 0}, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &logBuffer{}
			s := &watchedResource{resource: "services", namespace: metav1.NamespaceDefault, log: j.logger()}
			for round := 1; round <= 2; round++ {
				for i := range 100 {
					delay := s.retryDelay(tt.err)
					if n := min(i, 4); (i < 4 || i == 99) && delay != tt.delays[n] {
						t.Errorf("round %d, error %d: delay %v, want %v", round, i+1, delay, tt.delays[n])
					}
					if i == failuresBeforeReport-2 && (j.count("level=WARN") != (round-1)*tt.warns || s.refused.Load()) {
						t.Errorf("round %d: reported after %d", round, i+1)
					}
				}
				check.Equal(t, s.refused.Load(), tt.refused, "refused")
				check.Equal(t, j.count("level=WARN", "services in namespace default"), round*tt.warns, "round %d: warnings in all:\n%s", round, j)
				s.succeeded()
				s.succeeded()
				check.Equal(t, s.refused.Load(), false, "refused after it worked")
				check.Equal(t, j.count("level=INFO", "works now"), round*tt.warns, "round %d: how often it is logged that it works", round)
			}
		})
	}
}

// TestWatchRefused: a role lets us list and not watch. That is told, and the list is not repeated without a pause.
func TestWatchRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &logBuffer{}
		s := &watchedResource{resource: "services", log: j.logger(), poke: func() {}, relists: new(atomic.Int64)}
		began := time.Now()
		for range failuresBeforeReport {
			check.OK(t, s.send(t.Context(), true, func() error { return nil }))
			if err := s.send(t.Context(), false, func() error { return forbidden }); err == nil {
				t.Fatal("no error")
			}
		}
		if d := time.Since(began); !s.refused.Load() || j.count("level=WARN") != 1 || d < refusedMin<<(failuresBeforeReport-1) {
			t.Errorf("refused: %v, after %v; the log:\n%s", s.refused.Load(), d, j)
		}
	})
}

// A blindServer is an API server that lists Leases and Services, and whose watches show nothing.
type blindServer struct {
	mu       sync.Mutex
	version  string
	leases   []coordinationv1.Lease
	lists    map[string][]string // by resource, the versions that lists have asked for
	watching map[string]int      // by resource, watches that are open
}

func (s *blindServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, resource := verbAndResource(r)
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case q.Get("watch") != "":
		w.(http.Flusher).Flush()
		s.count(resource, 1)
		<-r.Context().Done()
		s.count(resource, -1)
	case resource == "leases", resource == "services":
		s.mu.Lock()
		defer s.mu.Unlock()
		list := coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}}
		if list.ResourceVersion, list.Items = s.version, s.leases; resource == "services" {
			list.APIVersion, list.Kind, list.Items = "v1", "ServiceList", nil
		}
		s.lists[resource] = append(s.lists[resource], q.Get("resourceVersion"))
		_ = json.NewEncoder(w).Encode(list)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *blindServer) count(resource string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[resource] += by
}

// watches reports whether one watch of each resource is open.
func (s *blindServer) watches() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching["leases"] == 1 && s.watching["services"] == 1
}

// TestWatchAgain: all watches begin again with a list, on a new connection, and take what the API server has now for
// what there is: also earlier versions, and that Leases are gone. No list is an old one of a server's cache.
func TestWatchAgain(t *testing.T) {
	b := &blindServer{
		version: "1000", lists: make(map[string][]string), watching: make(map[string]int),
		leases: []coordinationv1.Lease{*renewed("kube-system", "herald-node-n1", 1000), *renewed("default", "kubevip-web", 900)},
	}
	s, open := countingServer(t, b)
	c, err := New(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}, Options{
		NodeLeaseNamespace: "kube-system",
		Leases:             []vip.Key{{Namespace: "default", Name: "kubevip-web"}},
		Node:               "n1", Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeLeases: func() {},
	})
	check.OK(t, err)
	defer check.Run(t, c)()
	check.True(t, 10*time.Second, "watches", func() bool { return c.Leases.Synced() && b.watches() })
	if got := taken(c.Leases); !slices.Equal(got, []string{"default/kubevip-web", "kube-system/herald-node-n1"}) {
		t.Fatalf("the first list: %v", got)
	}
	b.mu.Lock()
	b.version, b.leases = "500", []coordinationv1.Lease{*renewed("kube-system", "herald-node-n1", 500)}
	b.mu.Unlock()
	before := open.Load()
	for range 3 { // more are one
		c.Leases.WatchAgain()
	}
	var got []string
	check.True(t, 10*time.Second, "Leases that have changed", func() bool { got = append(got, taken(c.Leases)...); return len(got) > 1 })
	check.Same(t, []string{"-default/kubevip-web", "kube-system/herald-node-n1"}, got, "the second list")
	check.True(t, 10*time.Second, "watches", b.watches)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, resource := range []string{"leases", "services"} {
		if all := b.lists[resource]; len(all) < 2 || strings.Join(all, "") != "" {
			t.Errorf("lists of %s: %q", resource, all)
		}
	}
	if open.Load() == before {
		t.Error("the connection is the old one")
	}
}

// newLeasesTest is a Cluster that is connected to nothing; pokes counts its PokeLeases.
func newLeasesTest(t testing.TB) (c *Cluster, pokes func() int) {
	t.Helper()
	return newTestCluster(t, "https://192.0.2.1:6443", func(o *Options) {
		o.Leases, o.Poke, o.PokeLeases = []vip.Key{{Namespace: "kube-system", Name: "plndr-cp-lock"}}, o.PokeLeases, o.Poke
	})
}

// renewed is a version of a Lease.
func renewed(namespace, name string, version int) *coordinationv1.Lease {
	holder, now := "some-pod", metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: fmt.Sprint(version)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now},
	}
}

// taken is the names of what TakeChanges returns, sorted; what was deleted with a minus.
func taken(l *Leases) (names []string) {
	changed, deleted := l.TakeChanges()
	for _, x := range changed {
		names = append(names, x.Namespace+"/"+x.Name)
	}
	for _, x := range deleted {
		names = append(names, "-"+x.Namespace+"/"+x.Name)
	}
	slices.Sort(names)
	return names
}

// A Lease wakes somebody only if it is a node lease, or an option or a Service names it, or a Service has named it before.
func TestLeasesThatNothingNames(t *testing.T) {
	c, pokes := newLeasesTest(t)
	s := c.Leases.stores[0]
	expect := func(step string, wantPokes int, want ...string) {
		t.Helper()
		if got, n := taken(c.Leases), pokes(); !slices.Equal(got, want) || n != wantPokes {
			t.Errorf("%s: %d pokes, changes %q; want %d, %q", step, n, got, wantPokes, want)
		}
	}
	check.OK(t, s.Replace([]any{renewed("default", "kubevip-web", 1), renewed("kube-system", "kube-scheduler", 2), renewed("kube-system", "herald-node-n2", 3)}, "3"))
	expect("the first list", 1, "kube-system/herald-node-n2")
	for i := range 300 {
		check.OK(t, s.Update(renewed("kube-system", "kube-scheduler", 10+i)))
		check.OK(t, s.Update(renewed("tenant", "herald-node-n1", 10+i)))
	}
	expect("leader elections", 0)
	check.OK(t, s.Update(renewed("kube-system", "plndr-cp-lock", 400)))
	expect("named by an option", 1, "kube-system/plndr-cp-lock")
	check.OK(t, c.services.Update(loadBalancer("web", "10.0.0.1")))
	expect("named by a Service from now on", 1, "default/kubevip-web")
	check.OK(t, s.Update(renewed("default", "kubevip-web", 401)))
	expect("changed", 1, "default/kubevip-web")
	other := loadBalancer("web", "10.0.0.1")
	other.Annotations[leaseNameKey] = "shared"
	check.OK(t, c.services.Update(other))
	check.OK(t, s.Update(renewed("default", "kubevip-web", 404)))
	check.OK(t, s.Update(renewed("default", "shared", 403)))
	expect("the Service names another, and the first is still held", 2, "default/kubevip-web", "default/shared")
	check.OK(t, s.Delete(renewed("default", "kubevip-web", 404)))
	expect("the first is deleted", 1, "-default/kubevip-web")
	check.OK(t, s.Update(renewed("default", "kubevip-web", 405)))
	expect("where what it names does not count it has its own again", 1, "default/kubevip-web")
	check.OK(t, s.Delete(renewed("default", "kubevip-web", 405)))
	expect("that is deleted", 1, "-default/kubevip-web")
	check.OK(t, c.services.Delete(other))
	check.OK(t, s.Update(renewed("default", "kubevip-web", 406)))
	expect("nothing names it any more", 0)
	check.OK(t, s.Delete(renewed("default", "shared", 406)))
	expect("the Service is deleted, then its lease", 1, "-default/shared")
	check.Equal(t, len(c.Leases.told), 2, "remembered as told")
	check.Equal(t, len(c.Leases.named), 1, "remembered as named")
}

// TestLargeLeases: of a Lease that a tenant has made large little is kept, however that is done, and all that decides; a node lease is kept as it is.
func TestLargeLeases(t *testing.T) {
	large, claim := strings.Repeat("x", 200<<10), map[string]string{"heraldvip.io/claim": "n1@7", "kubectl.kubernetes.io/last": "{}"}
	c, _ := newLeasesTest(t)
	s := c.Leases.stores[0]
	owned := []metav1.OwnerReference{{Kind: "Service", Name: "web", UID: "1"}}
	keep := func(namespace, name string, change func(*coordinationv1.Lease)) *coordinationv1.Lease {
		o := renewed(namespace, name, 1)
		o.Annotations, o.OwnerReferences, o.Labels = maps.Clone(claim), slices.Clone(owned), map[string]string{"app.kubernetes.io/managed-by": "herald"}
		change(o)
		check.OK(t, s.Add(o))
		return s.values[vip.Key{Namespace: namespace, Name: name}]
	}
	for what, change := range map[string]func(*coordinationv1.Lease){
		"annotation": func(o *coordinationv1.Lease) { o.Annotations["x"] = large },
		"many-own": func(o *coordinationv1.Lease) {
			for i := range 9000 {
				o.Annotations[fmt.Sprint("heraldvip.io/", i)] = "x"
			}
		},
		"holder":          func(o *coordinationv1.Lease) { o.Spec.HolderIdentity = &large },
		"preferredholder": func(o *coordinationv1.Lease) { o.Spec.PreferredHolder = &large },
		"strategy":        func(o *coordinationv1.Lease) { o.Spec.Strategy = new(coordinationv1.CoordinatedLeaseStrategy(large)) },
		"labels": func(o *coordinationv1.Lease) {
			for i := range 9000 {
				o.Labels[fmt.Sprint("l", i)] = "x"
			}
		},
		"finalizers": func(o *coordinationv1.Lease) { o.Finalizers = []string{large} },
		"owners": func(o *coordinationv1.Lease) {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{Name: large})
		},
		"generatename": func(o *coordinationv1.Lease) { o.GenerateName = large },
	} {
		got := keep("default", what, change)
		if got.Size() > 8<<10 {
			t.Errorf("%s: %d bytes are kept", what, got.Size())
		}
		if got.Annotations["heraldvip.io/claim"] != "n1@7" || got.ResourceVersion != "1" || got.Spec.RenewTime == nil {
			t.Errorf("%s: what decides is not kept: %+v", what, got)
		}
	}
	if small := keep("default", "small", func(*coordinationv1.Lease) {}); len(small.Annotations) != 2 || len(small.OwnerReferences) != 1 {
		t.Errorf("a small one is kept as %+v", small)
	}
	if table := keep("kube-system", "herald-table", func(o *coordinationv1.Lease) { o.Annotations["heraldvip.io/owners"] = large }); table.Size() < len(large) {
		t.Error("the table is cut")
	}
	if node := keep("kube-system", "herald-node-n2", func(o *coordinationv1.Lease) { o.Annotations["heraldvip.io/node"] = large }); node.Size() < len(large) {
		t.Error("a node lease is not kept whole")
	}
}
