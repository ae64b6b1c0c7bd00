package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A machine is a node whose parts write down what they are told, in order.
type machine struct {
	mu    sync.Mutex
	world vip.World
	plan  vip.Plan
	log   []string
	bound []vip.Address
	stuck bool // addresses can't be removed
	fails error
	told  bool // statuses are true as soon as they are wanted
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// take returns what has been written down since the last take.
func (m *machine) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := strings.Join(m.log, "\n")
	m.log = nil
	return s
}

func (m *machine) Observe(w *vip.World) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, self, stopping := w.Now, w.Self, w.Stopping
	*w = m.world
	w.Now, w.Self, w.Stopping = now, self, stopping
	w.Bound = slices.Clone(m.bound)
}

// A part of the machine.
type part[W any] func(want []W) ([]W, error)

func (p part[W]) Set(_ context.Context, want []W) ([]W, error) { return p(want) }

func (p part[W]) Put(want []W) { p(want) }

func (m *machine) addresses(want []vip.Address) ([]vip.Address, error) {
	var names []string
	for _, a := range want {
		names = append(names, a.Addr.String())
	}
	m.note("bind %v", names)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stuck {
		for _, b := range m.bound {
			if !slices.ContainsFunc(want, func(a vip.Address) bool { return a.Addr == b.Addr }) {
				want = append(slices.Clone(want), b)
			}
		}
	}
	m.bound = slices.Clone(want)
	return m.bound, m.fails
}

func (m *machine) announcements(want []vip.Announcement) ([]vip.Announcement, error) {
	var names []string
	for _, a := range want {
		name := a.Addr.String()
		if a.ListenOnly {
			name += " listen"
		}
		names = append(names, name)
	}
	m.note("announce %v", names)
	return want, nil
}

func (m *machine) owners(want []vip.Owner) ([]vip.Owner, error) {
	var names []string
	for _, o := range want {
		name := o.Unit.Name
		if o.Stays {
			name += " stays"
		}
		names = append(names, name)
	}
	m.note("owners %v", names)
	return want, nil
}

func (m *machine) statuses(want []vip.Status) ([]vip.Status, error) {
	if len(want) > 0 {
		m.note("statuses %d", len(want))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.world.StatusesPending = len(want); m.told {
		m.world.StatusesPending = 0
	}
	return want, nil
}

func quiet[W any](want []W) ([]W, error) { return want, nil }

// noting notes how much is wanted, by a format.
func noting[W any](m *machine, format string) part[W] {
	return func(want []W) ([]W, error) { m.note(format, len(want)); return want, nil }
}

// counting has n be how much was wanted last.
func counting[W any](n *int) part[W] {
	return func(want []W) ([]W, error) { *n = len(want); return want, nil }
}

func newAgent(m *machine, plan func(vip.World) vip.Plan) *Agent {
	if plan == nil {
		plan = func(vip.World) vip.Plan {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.plan
		}
	}
	return New(Options{
		Self: "n1", Plan: plan, Observers: []Observer{m}, Log: slog.New(slog.DiscardHandler),
		Addresses: part[vip.Address](m.addresses), Announcements: part[vip.Announcement](m.announcements),
		Leases: part[vip.Owner](m.owners), Statuses: part[vip.Status](m.statuses),
		HealthChecks: part[vip.HealthCheck](quiet[vip.HealthCheck]), AddressChecks: part[vip.AddressCheck](quiet[vip.AddressCheck]), Events: part[vip.Event](quiet[vip.Event]),
	})
}

// wanted is a plan of these addresses; each is a unit of its own.
func wanted(addrs ...string) vip.Plan {
	var p vip.Plan
	for _, s := range addrs {
		a := netip.MustParseAddr(s)
		p.Owners = append(p.Owners, vip.Owner{Unit: vip.Key{Name: s}, Node: "n1"})
		p.Addresses = append(p.Addresses, vip.Address{Addr: a, Bits: 32, Link: "eth0", Lease: vip.Key{Name: s}})
		p.Announcements = append(p.Announcements, vip.Announcement{Addr: a, Link: "eth0"})
	}
	return p
}

// known is a World in which the agent may act.
func known() vip.World {
	return vip.World{Synced: true, StopTold: true, Tenure: vip.Tenure{Epoch: 1, Until: time.Now().Add(time.Hour), Confirmed: true}}
}

func same0(t *testing.T, got string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, strings.Split(got, "\n")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Events that are not known go on to hold: without any they would be new ones later.
func TestEventsPending(t *testing.T) {
	m := &machine{world: known(), plan: vip.Plan{Events: []vip.Event{{Reason: vip.VIPAnnounced}}}}
	a := newAgent(m, nil)
	var got []int
	a.o.Events = part[vip.Event](func(want []vip.Event) ([]vip.Event, error) { got = append(got, len(want)); return want, nil })
	a.pass(t.Context())
	m.plan = vip.Plan{EventsPending: true}
	a.pass(t.Context())
	m.plan = vip.Plan{}
	a.pass(t.Context())
	if !slices.Equal(got, []int{1, 0}) {
		t.Errorf("so many Events were put: %v", got)
	}
}

// Stop saying what is no longer true, change addresses, say what now holds, let go of claims last.
func TestOrder(t *testing.T) {
	m := &machine{world: known(), plan: wanted("10.0.0.1", "10.0.0.2")}
	a := newAgent(m, nil)
	a.pass(t.Context())
	same0(t, m.take(), "bind [10.0.0.1 10.0.0.2]", "announce [10.0.0.1 10.0.0.2]", "owners [10.0.0.1 10.0.0.2]")
	m.plan = wanted("10.0.0.2", "10.0.0.3")
	a.pass(t.Context())
	same0(t, m.take(), "announce [10.0.0.2]", "bind [10.0.0.2 10.0.0.3]", "announce [10.0.0.2 10.0.0.3]", "owners [10.0.0.2 10.0.0.3]")
}

// The ports of a VIP are limited before it is bound, and for as long as it is. One whose ports can't be is not bound, but stays if it is.
func TestLimitsPorts(t *testing.T) {
	p := wanted("10.0.0.1", "10.0.0.2")
	open := func(i int) vip.OpenPort { return vip.OpenPort{Addr: p.Addresses[i].Addr, Protocol: "TCP", Port: 80} }
	p.OpenPorts = []vip.OpenPort{open(0)} // the second is exempt
	m := &machine{world: known(), plan: p}
	a := newAgent(m, nil)
	a.o.Announcements, a.o.Leases = part[vip.Announcement](quiet[vip.Announcement]), part[vip.Owner](quiet[vip.Owner])
	refuses := true
	a.o.OpenPorts = part[vip.OpenPort](func(want []vip.OpenPort) ([]vip.OpenPort, error) {
		if m.note("%d open ports", len(want)); refuses {
			return nil, nil
		}
		return want, nil
	})
	a.pass(t.Context())
	same0(t, m.take(), "1 open ports", "bind [10.0.0.2]")
	refuses = false
	a.pass(t.Context())
	same0(t, m.take(), "1 open ports", "bind [10.0.0.1 10.0.0.2]")
	refuses = true
	a.pass(t.Context())
	same0(t, m.take(), "1 open ports", "bind [10.0.0.1 10.0.0.2]")
	a.apply(t.Context(), vip.Plan{})
	same0(t, m.take(), "bind []", "0 open ports")
}

// Only kube-proxy takes packets at VIPs of Services, from before they are bound or advertised until that has ended, but not at one whose connections end on the node,
// nor at one that kube-proxy leaves alone. Of an aggregate only the VIPs are meant: hosts and pods may be in it.
func TestInvalidIsDropped(t *testing.T) {
	p := wanted("10.0.0.1", "10.0.0.2")
	before := wanted("10.0.0.1", "10.0.0.3").Addresses // an earlier process's
	p.Addresses[0].LocalDelivery = true
	for _, x := range []string{"10.0.0.0/24", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.4/32", "10.0.0.5/32"} {
		p.Routes = append(p.Routes, vip.Route{Prefix: netip.MustParsePrefix(x), Untranslated: x == "10.0.0.5/32"})
	}
	m := &machine{world: known(), plan: p, bound: before}
	m.world.Advertised = map[netip.Prefix]bool{ // as the last Plan had it
		netip.MustParsePrefix("10.0.0.0/24"): true, netip.MustParsePrefix("10.0.0.5/32"): true, netip.MustParsePrefix("10.0.0.6/32"): true}
	a := newAgent(m, nil)
	a.o.Announcements, a.o.Leases = part[vip.Announcement](quiet[vip.Announcement]), part[vip.Owner](quiet[vip.Owner])
	a.o.Invalid = part[netip.Addr](func(want []netip.Addr) ([]netip.Addr, error) {
		m.note("only kube-proxy at %v", want)
		return want, nil
	})
	a.o.Routes, a.o.Advertised = noting[vip.Route](m, "%d routes"), noting[vip.Route](m, "what came before %d routes is forgotten")
	a.pass(t.Context())
	same0(t, m.take(), "only kube-proxy at [10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.6]", "bind [10.0.0.1 10.0.0.2]", "5 routes",
		"what came before 5 routes is forgotten", "only kube-proxy at [10.0.0.2 10.0.0.4]")
	m.world.Advertised = map[netip.Prefix]bool{netip.MustParsePrefix("10.0.0.4/32"): true}
	a.pass(t.Context())
	m.take()
	a.apply(t.Context(), vip.Plan{})
	same0(t, m.take(), "only kube-proxy at [10.0.0.2 10.0.0.4]", "bind []", "0 routes", "what came before 0 routes is forgotten", "only kube-proxy at []")
}

// A process that stops withdraws routes, and waits until routers know; what it has bound without a lease it keeps bound meanwhile.
// A route of an owner begins to drain when its claim has gone, which may be while a pass is under way, and for certain.
func TestStopsAfterRoutes(t *testing.T) {
	for _, elected := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { stopAfterRoutes(t, &machine{world: known()}, elected, 0) })
	}
	synctest.Test(t, func(t *testing.T) { stopAfterRoutes(t, &machine{world: known()}, true, 5*time.Second) })
	synctest.Test(t, func(t *testing.T) { // without a lease, that no route needs
		w := known()
		w.Tenure.Until = time.Time{}
		stopAfterRoutes(t, &machine{world: w}, false, 0)
	})
}

func stopAfterRoutes(t *testing.T, m *machine, elected bool, doubt time.Duration) {
	if elected {
		m.world.Claims = map[vip.Key]vip.Claim{{Name: "10.0.0.1"}: {Holder: "n1", Valid: true}}
	}
	var stopped time.Time
	a := newAgent(m, func(w vip.World) vip.Plan {
		p := wanted("10.0.0.1")
		p.Owners, p.Addresses[0].Lease = nil, vip.Key{}
		p.Routes = []vip.Route{{Prefix: p.Addresses[0].Prefix(), Drain: w.Stopping && len(w.Claims)+len(w.HandingOver) == 0}}
		return p
	})
	a.o.Announcements = part[vip.Announcement](quiet[vip.Announcement])
	a.o.Leases = part[vip.Owner](func(want []vip.Owner) ([]vip.Owner, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.handingOver && m.world.Claims != nil {
			m.world.Claims = nil
			if doubt > 0 {
				m.world.HandingOver = map[vip.Key]vip.HandingOver{{Name: "10.0.0.1"}: {InDoubt: true}}
				time.AfterFunc(doubt, func() {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.world.HandingOver = nil
				})
			}
		}
		return want, nil
	})
	a.o.RoutingTable = part[vip.Route](func(want []vip.Route) ([]vip.Route, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(want) > 0 && want[0].Drain && stopped.IsZero() {
			stopped = time.Now()
		}
		m.world.RoutesDraining = !stopped.IsZero() && time.Since(stopped) < 2*time.Second
		return want, nil
	})
	stop := check.Run(t, a)
	time.Sleep(time.Second)
	m.take()
	stop()
	if took := time.Since(stopped); took < 2*time.Second || took > 3*time.Second {
		t.Errorf("elected: %v: it stopped after %v, want 2 s", elected, took)
	}
	if log := m.take(); !strings.HasSuffix(log, "bind [10.0.0.1]\nbind []") {
		t.Errorf("elected: %v: it ends with\n%s", elected, log)
	}
}

// What keeps connections is in the kernel before a VIP is bound, and stays there when the process ends.
func TestKeepsConnections(t *testing.T) {
	p := wanted("10.0.0.1")
	p.FormerOwners = []vip.FormerOwner{{Addr: p.Addresses[0].Addr}}
	p.Translations = []vip.Translation{{Addr: p.Addresses[0].Addr}}
	m := &machine{world: known(), plan: p}
	a := newAgent(m, nil)
	a.o.FormerOwners = noting[vip.FormerOwner](m, "%d former owners")
	a.o.Translations = noting[vip.Translation](m, "%d translations")
	a.pass(t.Context())
	same0(t, m.take(), "1 former owners", "1 translations", "bind [10.0.0.1]", "announce [10.0.0.1]", "owners [10.0.0.1]")
	a.apply(t.Context(), vip.Plan{})
	same0(t, m.take(), "announce []", "bind []", "announce []", "owners []")
}

// What the kernel does not have is not announced.
func TestAnnouncesWhatHolds(t *testing.T) {
	m := &machine{world: known(), plan: wanted("10.0.0.1", "10.0.0.2")}
	a := newAgent(m, nil)
	a.o.Addresses = part[vip.Address](func(want []vip.Address) ([]vip.Address, error) { return want[:1], errors.New("no") })
	if a.pass(t.Context()) {
		t.Error("a pass in which a part failed counts as good: nobody would try again")
	}
	same0(t, m.take(), "announce [10.0.0.1]", "owners [10.0.0.1 10.0.0.2]")
}

// What is handed over is listened for without a gap, after which nobody would know that it was announced, and only while it is bound.
func TestListensOn(t *testing.T) {
	m := &machine{world: known(), plan: wanted("10.0.0.1", "10.0.0.2")}
	a := newAgent(m, nil)
	a.pass(t.Context())
	m.take()
	m.plan.Announcements[0].ListenOnly = true
	a.pass(t.Context())
	same0(t, m.take(), "announce [10.0.0.1 listen 10.0.0.2]", "bind [10.0.0.1 10.0.0.2]", "announce [10.0.0.1 listen 10.0.0.2]", "owners [10.0.0.1 10.0.0.2]")
	m.plan.Addresses = m.plan.Addresses[1:]
	a.pass(t.Context())
	same0(t, m.take(), "bind [10.0.0.2]", "announce [10.0.0.2]", "owners [10.0.0.1 10.0.0.2]")
}

// A claim is not let go of while an address stands on it.
func TestStandsOnItsClaim(t *testing.T) {
	m := &machine{world: known(), plan: wanted("10.0.0.1"), stuck: true}
	a := newAgent(m, nil)
	a.pass(t.Context())
	for _, owners := range [][]vip.Owner{nil, {{Unit: vip.Key{Name: "10.0.0.1"}}}} { // no Service has it; nobody is to
		m.plan = vip.Plan{Owners: owners}
		m.take()
		a.pass(t.Context())
		same0(t, strings.TrimPrefix(m.take(), "announce []\n"), "bind []", "announce []", "owners [10.0.0.1 stays]")
	}
	m.stuck, m.plan = false, vip.Plan{}
	a.pass(t.Context())
	same0(t, m.take(), "bind []", "announce []", "owners []")
}

// Before anything is known, and after a sleep, nothing is touched.
func TestDoesNothing(t *testing.T) {
	for name, change := range map[string]func(*vip.World){
		"caches not filled":     func(w *vip.World) { w.Synced = false },
		"no node lease yet":     func(w *vip.World) { w.Tenure = vip.Tenure{} },
		"asleep, not confirmed": func(w *vip.World) { w.Tenure.Confirmed = false },
	} {
		m := &machine{world: known(), plan: wanted("10.0.0.1")}
		change(&m.world)
		if a := newAgent(m, nil); !a.pass(t.Context()) || m.take() != "" || a.Last() != nil {
			t.Errorf("%s: something was done", name)
		}
	}
	// Asleep for longer than the tenure: that is known, and acted on.
	m := &machine{world: known(), plan: vip.Plan{}}
	m.world.Tenure = vip.Tenure{Epoch: 1, Until: time.Now().Add(-time.Second)}
	newAgent(m, nil).pass(t.Context())
	if m.take() == "" {
		t.Error("a node without tenure keeps what it has")
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{world: known(), plan: wanted("10.0.0.1"), told: true}
		a := newAgent(m, func(w vip.World) vip.Plan {
			if w.Stopping {
				return vip.Plan{}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.plan
		})
		stop := check.Run(t, a)
		synctest.Wait()
		time.Sleep(time.Minute)
		m.take()
		time.Sleep(time.Hour) // nothing happens: not a single pass
		if got := m.take(); got != "" {
			t.Errorf("an idle agent did\n%s", got)
		}
		m.mu.Lock()
		m.plan = wanted("10.0.0.1", "10.0.0.2")
		m.mu.Unlock()
		for range 100 { // many pokes, few passes
			a.Poke()
		}
		time.Sleep(time.Second)
		if got := strings.Count(m.take(), "bind"); got < 1 || got > 4 {
			t.Errorf("%d passes for 100 pokes at once", got)
		}
		// A failing part is tried again, without a poke.
		m.mu.Lock()
		m.fails = errors.New("no")
		m.mu.Unlock()
		a.Poke()
		time.Sleep(10*retryAfter + retryAfter/2)
		if got := strings.Count(m.take(), "bind"); got < 9 || got > 12 {
			t.Errorf("%d tries in 10 s, want about one each %v", got, retryAfter)
		}
		m.mu.Lock()
		m.fails = nil
		m.mu.Unlock()
		if stop(); len(m.bound) != 0 {
			t.Errorf("after the end: bound %v", m.bound)
		}
	})
}

// A plan that would be another after a while is made again then, once.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{world: known()}
		first := true
		a := newAgent(m, func(vip.World) vip.Plan {
			p := vip.Plan{}
			if first {
				p.ReplanAfter = 3 * time.Second
			}
			first = false
			return p
		})
		stop := check.Run(t, a)
		time.Sleep(2 * time.Second)
		m.take()
		time.Sleep(time.Minute)
		if got := strings.Count(m.take(), "bind"); got != 1 {
			t.Errorf("%d more passes, want 1", got)
		}
		stop()
	})
}

// A plan that would soon be another is made again then, though an Applier fails, which alone is tried again after a second.
func TestAgainThoughSomethingFails(t *testing.T) {
	for _, tt := range []struct{ replan, want time.Duration }{{100 * time.Millisecond, 100 * time.Millisecond}, {5 * time.Second, time.Second}, {0, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			m := &machine{world: known(), fails: errors.New("an address can't be bound")}
			var passes []time.Time
			a := newAgent(m, func(vip.World) vip.Plan {
				passes = append(passes, time.Now())
				return vip.Plan{ReplanAfter: tt.replan}
			})
			stop := check.Run(t, a)
			time.Sleep(4500 * time.Millisecond)
			stop()
			if got := passes[1].Sub(passes[0]); got != tt.want {
				t.Errorf("with ReplanAfter %v the next plan came after %v, want %v", tt.replan, got, tt.want)
			}
		})
	}
}

// Stopping waits for the hand-over, but not for ever.
func TestStop(t *testing.T) {
	for _, handed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := &machine{world: known(), told: true}
			m.world.Claims = map[vip.Key]vip.Claim{{Name: "10.0.0.1"}: {Holder: "n1", Valid: true}}
			a := newAgent(m, func(w vip.World) vip.Plan {
				if len(w.Claims) == 0 {
					return vip.Plan{}
				}
				return wanted("10.0.0.1")
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- a.Run(ctx) }()
			synctest.Wait()
			cancel()
			began := time.Now()
			if handed {
				time.Sleep(300 * time.Millisecond)
				m.mu.Lock()
				m.world.Claims = nil
				m.mu.Unlock()
				a.Poke()
			}
			<-done
			took := time.Since(began)
			if handed && took > time.Second || !handed && (took < stopDeadline || took > stopDeadline+time.Second) {
				t.Errorf("handed over: %v: stopped after %v", handed, took)
			}
			if len(m.bound) != 0 {
				t.Errorf("left behind: %v", m.bound)
			}
			if !a.Stopping() {
				t.Error("nobody was told that it stops")
			}
		})
	}
}

// It hands over once its node lease has told the others that it stops, or can't.
func TestStopTold(t *testing.T) {
	for _, tt := range []struct {
		name string
		told time.Duration // after it was asked to stop
		lost bool
		want time.Duration // when it hands over
	}{
		{"at once", 20 * time.Millisecond, false, 20*time.Millisecond + stopNotice},
		{"the API server is slow", 700 * time.Millisecond, false, 700*time.Millisecond + stopNotice},
		{"not at all", time.Hour, false, tellTime + stopNotice},
		{"its node lease is lost", time.Hour, true, stopNotice},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &machine{world: known(), told: true}
			m.world.StopTold = false
			if tt.lost {
				m.world.Tenure.Until = time.Time{}
			}
			var began time.Time
			handsOver := time.Duration(-1)
			a := newAgent(m, func(w vip.World) vip.Plan {
				if w.Stopping && handsOver < 0 {
					handsOver = time.Since(began)
				}
				return vip.Plan{}
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- a.Run(ctx) }()
			synctest.Wait()
			began = time.Now()
			cancel()
			told := time.AfterFunc(tt.told, func() {
				m.mu.Lock()
				m.world.StopTold = true
				m.mu.Unlock()
				a.Poke()
			})
			<-done
			told.Stop()
			if handsOver != tt.want {
				t.Errorf("%s: it hands over after %v, want %v", tt.name, handsOver, tt.want)
			}
		})
	}
}

// What sends packets on to former owners outlasts the process, unless no other node may carry VIPs.
func TestStopOfTheLastNode(t *testing.T) {
	stopping := vip.NodeInfo{Excluded: "its Herald is stopping"}
	for _, tt := range []struct {
		name    string
		members []vip.Member
		left    int
	}{
		{"others go on", []vip.Member{{Name: "n1", Alive: true, Info: stopping}, {Name: "n2", Alive: true}}, 1},
		{"all stop", []vip.Member{{Name: "n1", Alive: true, Info: stopping}, {Name: "n2", Alive: true, Info: stopping}, {Name: "n3"}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &machine{world: known(), told: true, plan: vip.Plan{
				FormerOwners: []vip.FormerOwner{{Link: "eth0"}}, Balanced: []vip.BalancedServer{{Port: 6443}}, Translations: []vip.Translation{{Port: 6443}},
			}}
			m.world.Members = tt.members
			a := newAgent(m, nil)
			var left struct{ formerOwners, balanced, translations int }
			a.o.FormerOwners = counting[vip.FormerOwner](&left.formerOwners)
			a.o.Balanced = counting[vip.BalancedServer](&left.balanced)
			a.o.Translations = counting[vip.Translation](&left.translations)
			stop := check.Run(t, a)
			synctest.Wait()
			stop()
			if left.formerOwners != tt.left || left.balanced != tt.left || left.translations != tt.left {
				t.Errorf("%s: %+v entries are left, want %d each", tt.name, left, tt.left)
			}
		})
	}
}

func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{world: known()}
		a := newAgent(m, nil)
		gate := make(chan struct{})
		a.o.Addresses = part[vip.Address](func(want []vip.Address) ([]vip.Address, error) { <-gate; return nil, nil })
		go a.pass(t.Context())
		time.Sleep(hangAfter / 2)
		if a.Hangs() {
			t.Error("a pass of half the time hangs")
		}
		time.Sleep(hangAfter)
		if !a.Hangs() {
			t.Error("a pass that never ends does not hang")
		}
		close(gate)
		synctest.Wait()
		if a.Hangs() {
			t.Error("hangs after its end")
		}
	})
}

// Gateways are told the whole of what is wanted, and in the end what other nodes have by then: else the one that has not read yet that it was handed over would remove it.
func TestMappings(t *testing.T) {
	m := &machine{world: known(), plan: wanted("10.0.0.1")}
	m.plan.Mappings = []vip.Mapping{{Port: 80, Here: true}, {Port: 443}}
	a := newAgent(m, nil)
	a.o.Mappings = noting[vip.Mapping](m, "map %d")
	a.pass(t.Context())
	same0(t, m.take(), "bind [10.0.0.1]", "announce [10.0.0.1]", "map 2", "owners [10.0.0.1]")
	a.apply(t.Context(), a.finalPlan())
	same0(t, m.take(), "announce []", "bind []", "announce []", "map 1", "owners []")
}

// What clients wait for is planned at once, though not more often than four times a second.
func TestPokeNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passes []time.Duration
		began := time.Now()
		a := newAgent(&machine{world: known()}, func(vip.World) vip.Plan {
			passes = append(passes, time.Since(began))
			time.Sleep(20 * time.Millisecond)
			return vip.Plan{}
		})
		stop := check.Run(t, a)
		for _, x := range []struct {
			at   time.Duration
			poke func()
		}{{30, a.Poke}, {40, a.PokeNow}, {50, a.PokeNow}, {70, a.PokeNow}, {300, a.PokeNow}, {310, a.PokeNow}, {500, a.PokeNow}, {505, a.Poke}} {
			time.Sleep(x.at*time.Millisecond - time.Since(began))
			x.poke()
		}
		time.Sleep(time.Second)
		stop()
		// At 40 the rest of the first pass, until 90, is cut, and again at 310; at 60 and 70 not, nor at 505.
		want := []time.Duration{0, 40, 130, 300, 320, 500, 590}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if got := passes[:min(len(want), len(passes))]; !slices.Equal(got, want) {
			t.Errorf("passes after %v, want %v", passes, want)
		}
	})
}

// A pass during which the process was stopped is no reason to rest for as long.
func TestRest(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: minRest, time.Millisecond: 7 * time.Millisecond, 100 * time.Millisecond: 150 * time.Millisecond, time.Hour: maxRest,
	} {
		if got := rest(took); got != want {
			t.Errorf("after a pass of %v it rests for %v, want %v", took, got, want)
		}
	}
}
