package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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

// A process without egress removes what an earlier one, with egress, has left in nftables and in the routing policy database.
func TestEgressSwitchedOff(t *testing.T) {
	n := idleNode(t)
	n.cfg.Egress.Enable = false
	if o := n.agentOptions(); o.Egress == nil || o.EgressRoutes == nil {
		t.Error("the agent is handed no rooms of egress, so that what is in the kernel stays")
	}
}

var errFake = errors.New("a task fails")

// An ending is what a test sees of tasks: what each does, and how many seconds after the first.
type ending struct {
	mu    sync.Mutex
	began time.Time
	seen  map[time.Duration][]string
}

func (e *ending) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.began.IsZero() {
		e.began, e.seen = time.Now(), make(map[time.Duration][]string)
	}
	at := time.Since(e.began)
	e.seen[at] = append(e.seen[at], what)
}

func (e *ending) String() string {
	var all []string
	for at, what := range e.seen {
		slices.Sort(what)
		all = append(all, at.String()+": "+strings.Join(what, ", "))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// A fakeTask is asked to end by its ctx, and returns some time later. It may fail before.
type fakeTask struct {
	name  string
	takes time.Duration    // from the end of ctx until it returns
	fails <-chan time.Time // may be nil
	*ending
}

func (f *fakeTask) Run(ctx context.Context) error {
	select {
	case <-f.fails:
		return fmt.Errorf("%s: %w", f.name, errFake)
	case <-ctx.Done():
	}
	f.add(f.name)
	if f.takes > 0 {
		time.Sleep(f.takes)
		f.add(f.name + " has ended")
	}
	return nil
}

// Whatever ends a process, the agent hands over before leases, announcements and heartbeats end; unless another process
// has taken the node's name, so that this one must not act on its claims any longer.
func TestTasksEndInOrder(t *testing.T) {
	const handsOver = "0s: agent; 2s: agent has ended, leases, other; 3s: leases has ended, reader"
	for _, tt := range []struct{ name, fails, want string }{
		{"asked to end", "", handsOver},
		{"a reader fails, as when credentials were renewed", "credentials", handsOver},
		{"another task fails", "announcer", handsOver},
		{"the name is taken", "leases", "0s: agent, other, reader; 2s: agent has ended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &ending{}
				fake := func(name string, takes time.Duration) *fakeTask {
					f := &fakeTask{name: name, takes: takes, ending: e}
					if name == tt.fails {
						f.fails = time.After(time.Minute)
					}
					return f
				}
				x := tasks{
					readers: []task{fake("reader", 0)}, awaitName: func(context.Context) error { return nil },
					others: []task{fake("other", 0)}, leases: fake("leases", time.Second), agent: fake("agent", 2*time.Second),
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch tt.fails {
				case "":
					time.AfterFunc(time.Minute, cancel)
				case "announcer":
					x.others = append(x.others, fake("announcer", 0))
				case "credentials":
					x.readers = append(x.readers, fake("credentials", 0))
				}
				err := x.run(ctx, slog.New(slog.DiscardHandler))
				if (err != nil) != (tt.fails != "") || err != nil && (!errors.Is(err, errFake) || !strings.Contains(err.Error(), tt.fails)) {
					t.Errorf("it ends with %v", err)
				}
				check.Equal(t, e.String(), tt.want, "asked to end")
			})
		})
	}
}

// A process that looks for its node's name ends at once when a task fails, when another process has that, or when it is
// asked to, which is no error.
func TestTasksEndBeforeTheyBegin(t *testing.T) {
	for _, fails := range []string{"", "a reader", "the name"} {
		synctest.Test(t, func(t *testing.T) {
			e := &ending{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			failing := &fakeTask{name: "credentials", ending: e}
			if fails == "a reader" {
				failing.fails = time.After(time.Minute)
			}
			taken := make(<-chan time.Time)
			if fails == "the name" {
				taken = time.After(time.Minute)
			}
			began := time.Now()
			err := tasks{
				readers: []task{&fakeTask{name: "reader", ending: e}, failing},
				awaitName: func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-taken:
						return errFake
					}
				},
			}.run(ctx, slog.New(slog.DiscardHandler))
			took := time.Since(began)
			if fails == "" && (err != nil || took != time.Hour) || fails != "" && (!errors.Is(err, errFake) || took != time.Minute) {
				t.Errorf("%q fails: it ended after %v with %v", fails, took, err)
			}
		})
	}
}

// Each node's vip_interface may be another: what nodes ask of each other names none of them.
func TestControlPlaneLink(t *testing.T) {
	for named, want := range map[string]string{"eth0": vip.DefaultLink, "": config.Auto} {
		var cfg config.Config
		cfg.Link.Interface = named
		check.Equal(t, controlPlaneRules(cfg).Interface, want, "with vip_interface %q", named)
	}
}

// TestCommonLease: kube-vip may have Services on the control plane's Lease. Herald leaves both to it, and has them apart.
func TestCommonLease(t *testing.T) {
	env := strings.Fields("svc_enable=true vip_arp=true cp_enable=true address=192.0.2.50 vip_leasename=both svc_leasename=both")
	cfg, _, err := config.Parse(config.Sources{Env: env, Hostname: "n1"})
	check.OK(t, err)
	both := vip.Key{Namespace: "kube-system", Name: "both"}
	worker := cfg
	worker.ControlPlane.Enable = false
	if o := publishedOptions(cfg); o.SharedLease == both || o.SharedLease != commonOptions(worker).SharedLease || o.ControlPlaneLease != both {
		t.Errorf("Services are %v, without cp_enable %v; the control plane is %v", o.SharedLease, commonOptions(worker).SharedLease, o.ControlPlaneLease)
	}
	for _, theirs := range []bool{true, false} {
		info := vip.NodeInfo{Interface: "eth0", DefaultInterface: "eth0", APIServerReady: true, Options: publishedOptions(cfg),
			Links: []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}}
		w := vip.World{Synced: true, Now: noon, Self: "n1", Tenure: vip.Tenure{Epoch: 1, Until: noon.Add(time.Minute), Confirmed: true}, Services: []vip.Service{serviceWith("web", "192.0.2.60", "")},
			Members: []vip.Member{{Name: "n1", Epoch: 1, Alive: true, Info: info}}, Claims: map[vip.Key]vip.Claim{}}
		w.Services[0].AllowWithoutEndpoints = true
		want := map[string]vip.Reason{"control-plane": vip.VIPClaiming, "default/web": vip.VIPClaiming}
		if theirs {
			w.Claims[both] = vip.Claim{Holder: "n2", Foreign: true, Valid: true}
			want = map[string]vip.Reason{"control-plane": vip.HeldByOtherAnnouncer, "default/web": vip.HeldByOtherAnnouncer}
		}
		got, units := map[string]vip.Reason{}, map[vip.Key]bool{}
		for _, v := range planner(cfg)(w).Verdicts {
			got[v.Service.String()], units[v.Lease] = v.Reason, true
		}
		if !maps.Equal(got, want) || !units[both] || len(units) != 2 {
			t.Errorf("while a kube-vip has the Lease (%t): %v of %v, want %v of two units", theirs, got, units, want)
		}
	}
}

// aService is a list with one Service, whose status Herald has written.
const aService = `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"default","name":"web","uid":"u","resourceVersion":"5",
	"annotations":{"kube-vip.io/loadbalancerIPs":"192.0.2.60","kube-vip.io/vipHost":"n1"}},"spec":{"type":"LoadBalancer","ports":[{"port":80}]},
	"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.60"}]}}}]}`

// partlyForbidden is an API server that lists Services, if that is permitted, and forbids all else.
func partlyForbidden(t *testing.T, services bool) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !services || !strings.HasSuffix(r.URL.Path, "/services"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case r.URL.Query().Has("watch"):
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprint(w, aService)
		}
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
			own := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: vip.NodeLeasePrefix + "n1", Annotations: map[string]string{
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
			check.Equal(t, statuses.most.Load(), 0, "statuses that are written")
		})
	}
}

// While a process has the lock of the host, be it no Herald and listen to nothing, another one waits, says so once, and
// has it as soon as that ends.
func TestHostLock(t *testing.T) {
	name := hostSocket + "-" + t.Name()
	held := func(t *testing.T) func() {
		lock, mine := tryHostLock(name, slog.New(slog.DiscardHandler))
		if !mine {
			t.Fatal("it is not free")
		}
		return func() { check.OK(t, lock.Close()) }
	}
	bound := func(t *testing.T) func() {
		fd := check.Value(syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
		check.OK(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: name}))
		return func() { check.OK(t, syscall.Close(fd)) }
	}
	for what, hold := range map[string]func(*testing.T) func(){"another Herald": held, "a program that does not listen": bound} {
		release := hold(t)
		var log bytes.Buffer
		told, got := make(chan bool, 10), make(chan net.Listener)
		go func() {
			lock, err := awaitHostLock(t.Context(), name, slog.New(slog.NewTextHandler(&log, nil)), func() { told <- true })
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		<-told
		select {
		case <-got:
			t.Errorf("%s has the lock, and so has this one", what)
		case <-time.After(time.Second):
		}
		release()
		check.OK(t, (<-got).Close())
		if n := strings.Count(log.String(), "ss -xap"); n != 1 || len(told) > 0 {
			t.Errorf("%s: told %d times too often, logged\n%s", what, len(told), &log)
		}
	}
}

// A process that waits for the lock can be stopped.
func TestHostLockIsGivenUp(t *testing.T) {
	name := hostSocket + "-" + t.Name()
	lock, _ := tryHostLock(name, slog.New(slog.DiscardHandler))
	defer lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := awaitHostLock(ctx, name, slog.New(slog.DiscardHandler), cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
