package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// aService is a list with one Service, whose status Herald has written.
const aService = `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"default","name":"web","uid":"u","resourceVersion":"5",
	"annotations":{"kube-vip.io/loadbalancerIPs":"192.0.2.60","kube-vip.io/vipHost":"n1"}},"spec":{"type":"LoadBalancer","ports":[{"port":80}]},
	"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.60"}]}}}]}`

// partlyForbidden is an API server that lists Services, if that is permitted, and forbids all else.
func partlyForbidden(t *testing.T, services bool) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		code, reason := http.StatusForbidden, "Forbidden"
		if services && strings.HasSuffix(r.URL.Path, "/services") {
			switch {
			case r.URL.Query().Has("sendInitialEvents"): // an API server that only lists
				code, reason = http.StatusUnprocessableEntity, "Invalid"
			case r.URL.Query().Has("watch"):
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			default:
				fmt.Fprint(w, aService)
				return
			}
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}))
	t.Cleanup(s.Close)
	return s
}

// collected is an Applier, and a Mailbox, that remembers the largest want.
type collected[W any] struct{ most atomic.Int64 }

func (c *collected[W]) Put(want []W) { c.most.Store(max(c.most.Load(), int64(len(want)))) }

func (c *collected[W]) Set(_ context.Context, want []W) ([]W, error) {
	c.Put(want)
	return want, nil
}

// TestServicesRefused: with cp_enable alone the VIP of the control plane comes up with a role that lets Herald write Leases, and list Services or not even
// that, and nothing is written on Services.
func TestServicesRefused(t *testing.T) {
	kube.LogLibrary(slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		name     string
		services bool
	}{{"no EndpointSlices", true}, {"neither Services nor EndpointSlices", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, _, err := config.Parse(config.Sources{Env: strings.Fields("vip_arp=true cp_enable=true address=192.0.2.10 vip_nodename=n1 vip_skipdad=true"), Hostname: "n1"})
			check.OK(t, err)
			n := &node{cfg: cfg, log: slog.New(slog.DiscardHandler), options: publishedOptions(cfg)}
			wake := mailbox.NewSignal()
			poke := func() { n.agent.Poke() }
			n.cluster = check.Value(kube.New(&rest.Config{Host: partlyForbidden(t, tt.services).URL}, n.clusterOptions(nil, poke, wake.Send)))(t)
			leases := leasetest.NewServer()
			own := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: lease.NodePrefix + "n1", Annotations: map[string]string{
				lease.FencedAnnotation: "1",
			}}}
			own.Spec.LeaseTransitions = new(int32(1))
			check.Value(leases.Put(own))(t)
			client := leasetest.NewClient(leases, wake.Send)
			info := vip.NodeInfo{Interface: "eth0", DefaultInterface: "eth0", Options: n.options, APIServerReady: true,
				Links: []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}}
			n.leases = lease.New(client, lease.Options{
				Node: "n1", Namespace: "kube-system", Log: n.log, Wake: wake, Poke: poke, Info: func() vip.NodeInfo { return info },
				Timing: quorum.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second},
			})
			statuses, addresses := &collected[vip.Status]{}, &collected[vip.Address]{}
			n.agent = agent.New(agent.Options{
				Self: "n1", Log: n.log, Plan: func(w vip.World) vip.Plan { return plan.Make(planRules(cfg), w) },
				Observers: []agent.Observer{n.cluster, n.leases}, Leases: n.leases, Statuses: statuses, Addresses: addresses,
				Announcements: &collected[vip.Announcement]{}, Events: &collected[vip.Event]{}, HealthChecks: &collected[vip.HealthCheck]{},
			})
			began := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); client.Watch(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			check.Run(t, n.cluster)
			check.Run(t, n.leases)
			check.Run(t, n.agent)
			key := vip.Key{Namespace: "kube-system", Name: lease.TableName}
			check.True(t, 30*time.Second, "the VIP of the control plane is claimed and bound", func() bool {
				x := leases.Lease(key)
				return x != nil && strings.Contains(x.Annotations[lease.OwnersAnnotation], "n1@2") && addresses.most.Load() == 1
			})
			t.Logf("after %v", time.Since(began).Round(time.Millisecond))
			if n := statuses.most.Load(); n > 0 {
				t.Errorf("%d statuses are written", n)
			}
		})
	}
}
