package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestRetryDelay: what is logged, and how long the API server is not asked, for each error that a reflector may see, again and again.
func TestRetryDelay(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
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
				if s.refused.Load() != tt.refused {
					t.Errorf("refused is %v, want %v", s.refused.Load(), tt.refused)
				}
				if got := j.count("level=WARN", "services in namespace default"); got != round*tt.warns {
					t.Errorf("round %d: %d warnings in all, want %d:\n%s", round, got, round*tt.warns, j)
				}
				s.succeeded()
				s.succeeded()
				if s.refused.Load() {
					t.Error("refused after it worked")
				}
				if got := j.count("level=INFO", "works now"); got != round*tt.warns {
					t.Errorf("round %d: logged %d times that it works, want %d", round, got, round*tt.warns)
				}
			}
		})
	}
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
	case q.Get("sendInitialEvents") == "true":
		w.WriteHeader(http.StatusUnprocessableEntity) // as a server that has no such watches
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
// what there is: also earlier versions, and that Leases are gone. That list is no old one of a server's cache.
func TestWatchAgain(t *testing.T) {
	b := &blindServer{
		version: "1000", lists: make(map[string][]string), watching: make(map[string]int),
		leases: []coordinationv1.Lease{*renewed("kube-system", "herald-node-n1", 1000), *renewed("default", "kubevip-web", 900)},
	}
	s, open := countingServer(t, b)
	c, err := New(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}, Options{
		NodeLeaseNamespace: "kube-system", NodeLeasePrefix: "herald-node-",
		Leases: []vip.Key{{Namespace: "default", Name: "kubevip-web"}},
		Node:   "n1", Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeLeases: func() {},
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
	if !slices.Equal(got, []string{"-default/kubevip-web", "kube-system/herald-node-n1"}) {
		t.Errorf("the second list: %v", got)
	}
	check.True(t, 10*time.Second, "watches", b.watches)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, resource := range []string{"leases", "services"} {
		if all := b.lists[resource]; len(all) < 2 || all[0] != "0" || slices.Contains(all[1:], "0") {
			t.Errorf("lists of %s: %q", resource, all)
		}
	}
	if open.Load() == before {
		t.Error("the connection is the old one")
	}
}
