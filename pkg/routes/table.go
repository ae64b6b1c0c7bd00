package routes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Table; only Type may be missing.
type Options struct {
	Log *slog.Logger
	// Poke is called when routes have gone that Set wrote.
	Poke func()
	// Link returns the link of routes, or "", without blocking.
	Link func() string

	ID       int // of the table: vip_routingtableid
	Type     int // rtm_type, such as unix.RTN_UNICAST: vip_routingtabletype
	Protocol int // rtm_protocol: vip_routingprotocol
}

// How long draining routes stay: first in the table, until the successor's are exported; then routers may still use
// them.
const (
	drainStay = time.Second
	drainTime = 2 * time.Second
)

// relistTable is how often Set reads the table at least, in case the kernel told of no change.
const relistTable = time.Minute

// A Table is a routing table of this network namespace, from which another daemon (BIRD, FRR) exports routes to VIPs
// (vip_routingtable). The kernel itself looks there only by somebody's rule (ip-rule(8)). Only the agent's goroutine
// may call Set and Observe.
//
// Herald's routes have its protocol number (rtm_protocol, rtnetlink(7)), known to later processes (docs/why.md,
// "Routing tables"); others are never touched. A killed process's routes stay until the next begins: the kernel gives
// IPv4 routes no lifetime.
type Table struct {
	o      Options
	kernel *kernel
	*metrics

	written  atomic.Pointer[map[netip.Prefix]bool] // what the kernel has, as far as Set knows; never changed, but replaced
	stale    atomic.Bool                           // the kernel may have something else
	listed   time.Time                             // when the table was read
	link     string                                // that the routes have
	draining map[netip.Prefix]time.Time            // routes with Drain, and since when
}

// NewTable makes a Table. What an earlier process left is kept until the first Set.
func NewTable(o Options) *Table {
	t := &Table{o: o, kernel: &kernel{o: o, tables: make(map[int]bool)}, metrics: newMetrics()}
	t.written.Store(&map[netip.Prefix]bool{})
	t.stale.Store(true)
	return t
}

// Observe sets Advertised, without BGP, and RoutesDraining, if routes began to drain less than two seconds ago.
func (t *Table) Observe(w *vip.World) {
	if w.Advertised == nil {
		w.Advertised = *t.written.Load()
	}
	for _, since := range t.draining {
		w.RoutesDraining = w.RoutesDraining || w.Now.Sub(since) < drainTime
	}
}

// LinksChanged has the next Set read the table: with a link go its routes.
func (t *Table) LinksChanged() { t.stale.Store(true) }

// Set makes Herald's routes those of want, without aggregates, and those drained for a second. It reads the table once
// a minute, and if others may have changed it. It returns the routes of want that the kernel has; the error names
// failures and what to do.
func (t *Table) Set(_ context.Context, want []vip.Route) ([]vip.Route, error) {
	now := time.Now()
	wanted := t.wanted(want, now)
	link := t.o.Link()
	if t.stale.Load() || link != t.link || now.Sub(t.listed) >= relistTable || !maps.Equal(wanted, *t.written.Load()) {
		t.stale.Store(false) // before the table is read
		t.link, t.listed = link, now
		have, err := t.write(wanted)
		t.written.Store(&have)
		t.metrics.routes.Set(float64(len(have)))
		if err != nil {
			t.stale.Store(true)
			return t.of(want), err
		}
	}
	return t.of(want), nil
}

func (t *Table) of(want []vip.Route) (have []vip.Route) {
	written := *t.written.Load()
	for _, r := range want {
		if written[r.Prefix] {
			have = append(have, r)
		}
	}
	return have
}

// wanted returns the prefixes for the table, and stores since when routes drain.
func (t *Table) wanted(want []vip.Route, now time.Time) map[netip.Prefix]bool {
	wanted, draining := make(map[netip.Prefix]bool, len(want)), make(map[netip.Prefix]time.Time)
	for _, r := range want {
		if r.Service.IsZero() {
			continue
		}
		if r.Drain {
			draining[r.Prefix] = cmp.Or(t.draining[r.Prefix], now)
			if now.Sub(draining[r.Prefix]) >= drainStay {
				continue
			}
		}
		wanted[r.Prefix] = true
	}
	t.draining = draining
	return wanted
}

// write adds missing routes, removes unwanted ones and those of another link, and returns what is there. Without the
// link it only removes unwanted ones.
func (t *Table) write(wanted map[netip.Prefix]bool) (map[netip.Prefix]bool, error) {
	have := make(map[netip.Prefix]bool, len(wanted))
	index, noLink := t.kernel.index(t.link)
	found, err := t.kernel.list()
	if err != nil {
		return have, fmt.Errorf("routing table %d can't be read: %w", t.o.ID, err)
	}
	// What is removed on purpose is no change by others.
	stay := maps.Clone(*t.written.Load())
	maps.DeleteFunc(stay, func(p netip.Prefix, _ bool) bool { return !wanted[p] })
	t.written.Store(&stay)
	var errs []error
	for _, r := range found {
		if wanted[r.prefix] && (r.link == index || noLink != nil) && r.kind == t.o.Type && !have[r.prefix] {
			have[r.prefix] = true
			continue
		}
		if err := delRoute(r.entry); err != nil {
			errs = append(errs, fmt.Errorf("route to %s in table %d was not removed: %w", r.prefix, t.o.ID, err))
		}
	}
	if noLink != nil && len(wanted) > 0 {
		errs = append(errs, fmt.Errorf("routes to VIPs need a link: %w", noLink))
	}
	for _, p := range slices.SortedFunc(maps.Keys(wanted), netip.Prefix.Compare) {
		if have[p] || noLink != nil {
			continue
		}
		if err := t.kernel.add(p, index); err != nil {
			errs = append(errs, fmt.Errorf("route to %s in table %d: %w", p, t.o.ID, err))
			continue
		}
		have[p] = true
	}
	t.metrics.errors.Add(float64(len(errs)))
	return have, vip.JoinErrors(errs)
}

// Run pokes when routes that Set wrote have gone from the table, until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := t.kernel.follow(ctx, func(gone netip.Prefix) {
			if (*t.written.Load())[gone] {
				t.stale.Store(true)
				t.o.Poke()
			}
		})
		if ctx.Err() != nil {
			break
		}
		t.o.Log.Debug("changes of routing tables were lost; they are read again", "err", err)
		t.stale.Store(true)
		t.o.Poke()
		mailbox.Sleep(ctx, time.Second)
	}
	return nil
}

type metrics struct {
	*metric.Set
	routes prometheus.Gauge
	errors prometheus.Counter
}

func newMetrics() *metrics {
	s := &metric.Set{}
	return &metrics{
		Set:    s,
		routes: metric.Gauge(s, "herald_table_routes", "Routes to VIPs in the routing table of vip_routingtable."),
		errors: metric.Counter(s, "herald_table_errors_total", "Routes to VIPs that the kernel refused to add or to "+
			"remove."),
	}
}
