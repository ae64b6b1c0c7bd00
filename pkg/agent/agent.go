// Package agent is the loop of the node: it reads what all rooms have observed
// into a World, makes a Plan of it, and hands each part the whole of what is
// wanted of it. It knows interfaces only.
//
//	poke -> World -> Plan -> room by room: unwanted announcements end, addresses change,
//	what the kernel has is announced, and last the leases without an address are released.
//
// There is no other path: a deleted Service, a lost claim and a process that stops are
// a Plan that holds less.
package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// An Applier makes one aspect of the node equal to want. Set is idempotent, adds before it removes, goes on after
// failures, and returns what then holds; err joins what went wrong. It does not wait for a network.
type Applier[W any] interface {
	Set(ctx context.Context, want []W) (have []W, err error)
}

// A Mailbox takes all that is wanted, in place of the former, and returns at once. Its Run works on that, and the next
// World tells how far. want must not be changed afterwards.
type Mailbox[W any] interface {
	Put(want []W)
}

// An Observer fills in what it has observed, from memory.
type Observer interface {
	Observe(w *vip.World)
}

// Options of an Agent. Fields that may be nil say so.
type Options struct {
	Self      string
	Plan      func(vip.World) vip.Plan
	Observers []Observer
	Log       *slog.Logger
	Passed    func(vip.World, vip.Plan) // may be nil: called after each pass that planned anything, must not block

	FormerOwners Applier[vip.FormerOwner]    // may be nil: connections of VIPs that move are reset
	Balanced     Applier[vip.BalancedServer] // may be nil: connections to the control plane's VIP are not balanced
	OpenPorts    Applier[vip.OpenPort]       // may be nil: the ports of VIPs are not limited
	// may be nil: then packets to VIPs of Services that kube-proxy has not translated are taken, or forwarded
	Invalid       Applier[netip.Addr]
	Egress        Applier[vip.Egress] // may be nil, with EgressRoutes: what pods send keeps its source
	EgressRoutes  Applier[vip.Egress]
	Translations  Applier[vip.Translation] // may be nil: those to the API server are
	Addresses     Applier[vip.Address]
	Announcements Applier[vip.Announcement]
	RoutingTable  Applier[vip.Route]   // may be nil: no routing table has routes to VIPs
	Macvlans      Applier[vip.Macvlan] // may be nil, with DHCP

	Leases        Mailbox[vip.Owner]
	Statuses      Mailbox[vip.Status]
	Pools         Mailbox[vip.PoolInput]  // may be nil: Services are given no addresses
	Assignments   Mailbox[vip.Assignment] // may be nil, with Pools
	Events        Mailbox[vip.Event]
	HealthChecks  Mailbox[vip.HealthCheck]
	AddressChecks Mailbox[vip.AddressCheck] // may be nil: nobody is asked who has an address
	DHCP          Mailbox[vip.DHCPRequest]  // may be nil: no DHCP server is asked for anything
	Routes        Mailbox[vip.Route]        // may be nil: no router is told of anything
	Senders       Mailbox[vip.Egress]       // may be nil: UDP of pods keeps its source when their VIP moves
	Advertised    Mailbox[vip.Route]        // may be nil: what came for a VIP before it is advertised is not forgotten
	Mappings      Mailbox[vip.Mapping]      // may be nil: no gateway is asked for anything
}

// Times of the loop.
const (
	minRest = 2 * time.Millisecond // the least time between two passes
	// the longest rest after a pass: after a longer one, stopped meanwhile, other nodes may have its VIPs
	maxRest      = 250 * time.Millisecond
	retryAfter   = time.Second            // after a pass in which an Applier failed, at the latest
	stopTick     = 100 * time.Millisecond // between passes while stopping
	stopNotice   = 150 * time.Millisecond // between telling other nodes that this one stops and handing over
	tellTime     = time.Second            // for telling them
	stopDeadline = 20 * time.Second       // for handing everything over; the Pod's grace period is 30 s
	hangAfter    = 30 * time.Second       // a pass that takes longer counts as hanging
)

// An Agent is the one owner of the plan.
type Agent struct {
	o            Options
	poke         mailbox.Signal
	pokeNow      mailbox.Signal
	restCutAt    time.Time   // when a PokeNow last ended a rest
	stopping     atomic.Bool // Run was asked to end; other nodes see that on the node lease
	handingOver  bool        // Plans are made as if this node were eligible for nothing
	last         atomic.Pointer[Pass]
	passBegan    atomic.Pointer[time.Time] // when the pass under way began; nil between passes
	timer        *time.Timer               // when to make a pass without a poke
	logged       map[string]string
	announced    []vip.Announcement // what Announcements.Set returned last
	egress       egressState
	macvlansLeft int // how many Macvlans.Set returned last
	*metrics
}

// A Pass is what a pass of the loop knew and decided.
type Pass struct {
	World vip.World
	Plan  vip.Plan
}

// New makes an Agent. Run does the work.
func New(o Options) *Agent {
	return &Agent{o: o, poke: mailbox.NewSignal(), pokeNow: mailbox.NewSignal(), timer: time.NewTimer(0),
		logged: make(map[string]string), metrics: newMetrics()}
}

// Poke says that the World may have changed, without blocking.
func (a *Agent) Poke() { a.poke.Send() }

// PokeNow is Poke for what clients wait for: it also ends a rest, once each maxRest.
func (a *Agent) PokeNow() {
	a.poke.Send()
	a.pokeNow.Send()
}

// Stopping reports whether Run was asked to end and hands everything over.
func (a *Agent) Stopping() bool { return a.stopping.Load() }

// Last is the last pass that planned anything, or nil.
func (a *Agent) Last() *Pass { return a.last.Load() }

// Hangs reports whether a pass has been under way for too long.
func (a *Agent) Hangs() bool {
	began := a.passBegan.Load()
	return began != nil && time.Since(*began) > hangAfter
}

// Run makes passes until ctx ends, hands over what others can have, and removes the rest.
func (a *Agent) Run(ctx context.Context) error {
	defer a.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			a.stop(context.WithoutCancel(ctx))
			return nil
		case <-a.poke:
		case <-a.timer.C:
		}
		select {
		case <-a.pokeNow: // this is the pass
		default:
		}
		began := time.Now()
		a.pass(ctx)
		pokeNow := a.pokeNow
		if time.Since(a.restCutAt) < maxRest {
			pokeNow = nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest(time.Since(began))):
		case <-pokeNow:
			a.restCutAt = time.Now()
		}
	}
}

// rest is the time to wait after such a pass: each VIP that moves is a poke.
func rest(took time.Duration) time.Duration {
	return max(minRest, min(7*took, took+50*time.Millisecond, maxRest))
}

// stop hands everything over, make before break, and then removes what is left.
func (a *Agent) stop(ctx context.Context) {
	a.stopping.Store(true)
	a.o.Log.Info("asked to stop: the VIPs of this node are handed over")
	// nodes that stop at once must not choose each other
	handOverAt := time.Now().Add(tellTime + stopNotice)
	for told := false; time.Now().Before(handOverAt); {
		a.pass(ctx)
		if w := a.observe(); !told && (w.StopTold || !w.Tenure.Holds(w.Now)) {
			told, handOverAt = true, time.Now().Add(stopNotice)
		}
		select {
		case <-a.poke:
		case <-time.After(time.Until(handOverAt)):
		}
	}
	a.handingOver = true
	deadline := time.NewTimer(stopDeadline)
	defer deadline.Stop()
	for ticker := time.NewTicker(stopTick); ; {
		began := time.Now()
		a.pass(ctx)
		w := a.observe()
		// until a pass has seen that the claims are gone, their routes don't drain
		last := a.last.Load()
		seen := last != nil && !holds(last.World)
		if !w.RoutesDraining &&
			(!w.Synced || !w.Tenure.Holds(w.Now) || !holdsAny(w.Bound) && seen && !holds(w) && w.StatusesPending == 0) {
			break
		}
		time.Sleep(rest(time.Since(began)))
		select {
		case <-a.poke:
			continue
		case <-ticker.C:
			continue
		case <-deadline.C:
			a.o.Log.Warn("not everything could be handed to another node in time; removing it")
		}
		break
	}
	if a.last.Load() != nil {
		final := a.finalPlan()
		for a.apply(ctx, final); a.macvlansLeft > 0; { // netif removes a few at a time
			before := a.macvlansLeft
			if a.apply(ctx, final); a.macvlansLeft == before {
				break
			}
		}
	}
	// Else this process has never planned: marked addresses are an earlier process's, and end by their lifetime unless
	// renewed.
	if a.last.Load() == nil || !lastNode(a.observe()) {
		return
	}
	a.applyLasting(ctx, vip.Plan{})
}

// applyLasting hands over what keeps connections, before VIPs are bound, and beyond the process.
func (a *Agent) applyLasting(ctx context.Context, p vip.Plan) {
	set(ctx, a.o.FormerOwners, p.FormerOwners, "former owners", a.logOnce)
	set(ctx, a.o.Balanced, p.Balanced, "balancing of API servers", a.logOnce)
	set(ctx, a.o.Translations, p.Translations, "translations", a.logOnce)
}

// lastNode reports whether no other node may carry VIPs, as when Herald is removed.
func lastNode(w vip.World) bool {
	return !slices.ContainsFunc(w.Members,
		func(m vip.Member) bool { return m.Name != w.Self && m.Alive && m.Info.Excluded == "" })
}

// holdsAny reports whether any address is bound by a lease: other nodes have the others, too.
func holdsAny(bound []vip.Address) bool {
	return slices.ContainsFunc(bound, func(a vip.Address) bool { return !a.Lease.IsZero() })
}

// holds reports whether this node has claims, or may still have what it gave away.
func holds(w vip.World) bool {
	for _, h := range w.HandingOver {
		if h.InDoubt {
			return true
		}
	}
	for _, c := range w.Claims {
		if c.Valid && c.Holder == w.Self {
			return true
		}
	}
	return false
}

func (a *Agent) observe() vip.World {
	w := vip.World{Now: time.Now(), Self: a.o.Self, Stopping: a.handingOver}
	for _, s := range a.o.Observers {
		s.Observe(&w)
	}
	return w
}

// pass makes one pass, and reports whether all Appliers succeeded.
func (a *Agent) pass(ctx context.Context) bool {
	began := time.Now()
	a.passBegan.Store(&began)
	defer a.passBegan.Store(nil)
	w := a.observe()
	switch {
	case !w.Synced || w.Tenure.Epoch == 0:
		// Nothing is known yet. What an earlier process left may be this node's, else it ends by its lifetime.
		return true
	case w.Tenure.Holds(w.Now) && !w.Tenure.Confirmed:
		// The process was asleep: nothing changes until a renewal confirms its claims.
		return true
	}
	p := a.o.Plan(w)
	for i := range p.Addresses { // by the time that it is bound the node may have lost what it has by then
		p.Addresses[i].Epoch = w.Tenure.Epoch
	}
	a.last.Store(&Pass{World: w, Plan: p})
	a.applyLasting(ctx, p)
	ok := a.apply(ctx, p)
	if a.o.Passed != nil {
		a.o.Passed(w, p)
	}
	a.metrics.observe(p, time.Since(began))
	again := p.ReplanAfter
	if !ok && (again <= 0 || again > retryAfter) {
		again = retryAfter
	}
	if again > 0 {
		a.timer.Reset(again)
	}
	return ok
}

// apply hands each room what the plan wants, and reports whether all Appliers succeeded.
func (a *Agent) apply(ctx context.Context, p vip.Plan) bool {
	ok := true
	failed := func(applier string, err error) {
		if err != nil {
			ok = false
			a.metrics.errors.WithLabelValues(applier).Inc()
		}
		a.logOnce(applier, err)
	}
	before := a.last.Load()

	wanted := make(map[binding]vip.Announcement, len(p.Announcements))
	for _, x := range p.Announcements {
		wanted[binding{x.Addr, x.Link}] = x
	}
	var keep []vip.Announcement
	for _, x := range a.announced {
		if w, ok := wanted[binding{x.Addr, x.Link}]; ok {
			x.ListenOnly = x.ListenOnly || w.ListenOnly
			keep = append(keep, x)
		}
	}
	if !slices.Equal(keep, a.announced) {
		set(ctx, a.o.Announcements, keep, "announcements", failed)
	}
	guard := func(gone map[netip.Prefix]bool, bound ...vip.Address) {
		set(ctx, a.o.Invalid, translatedAddresses(slices.Concat(p.Addresses, bound), p.Routes, gone),
			"VIPs that only kube-proxy takes packets at", failed)
	}
	// before they are bound or advertised, and until that is undone: conntrack remembers what comes in between
	guard(before.World.Advertised, slices.Concat(before.Plan.Addresses, before.World.Bound)...)
	have := set(ctx, a.o.Addresses, a.limited(ctx, p), "addresses", failed)
	if len(p.OpenPorts) == 0 { // once the addresses have gone
		set(ctx, a.o.OpenPorts, nil, "ports", failed)
	}
	a.applyEgress(ctx, p, failed)
	bound := make(map[binding]bool, len(have))
	for _, x := range have {
		bound[binding{x.Addr, x.Link}] = true
	}
	set(ctx, a.o.RoutingTable, p.Routes, "routing table", failed)
	announce := slices.DeleteFunc(slices.Clone(p.Announcements),
		func(x vip.Announcement) bool { return !bound[binding{x.Addr, x.Link}] })
	a.announced = set(ctx, a.o.Announcements, announce, "announcements", failed)
	// A link is made before its addresses, and removed after them.
	a.macvlansLeft = len(set(ctx, a.o.Macvlans, p.Macvlans, "links", failed))
	a.putAll(p, have)
	guard(nil, have...)

	if !same(before.World.Bound, bound) {
		a.Poke() // status and Events follow what the kernel confirmed
	}
	return ok
}

// putAll hands each Mailbox what the plan wants, once have is bound.
func (a *Agent) putAll(p vip.Plan, have []vip.Address) {
	put(a.o.Pools, p.Pools)
	put(a.o.Assignments, p.Assignments)
	put(a.o.DHCP, p.DHCPRequests)
	put(a.o.Routes, p.Routes)
	put(a.o.Advertised, p.Routes)
	put(a.o.Mappings, p.Mappings)
	put(a.o.HealthChecks, p.HealthChecks)
	put(a.o.AddressChecks, p.AddressChecks)
	put(a.o.Statuses, p.Statuses)
	if !p.EventsPending {
		put(a.o.Events, p.Events)
	}
	put(a.o.Leases, keepOwners(p, have))
}

// translatedAddresses returns each address once, bound or advertised (now, or in before), without those whose first
// entry has LocalDelivery, or that kube-proxy leaves alone.
func translatedAddresses(all []vip.Address, routes []vip.Route, before map[netip.Prefix]bool) (found []netip.Addr) {
	seen := make(map[netip.Addr]bool, len(all)+len(routes))
	add := func(a netip.Addr, not bool) {
		if !seen[a] && !not {
			found = append(found, a)
		}
		seen[a] = true
	}
	for _, a := range all { // what an earlier process bound comes last, and has no LocalDelivery
		add(a.Addr, a.LocalDelivery)
	}
	for _, r := range routes { // an aggregate may have hosts and pods, too
		if r.Prefix.IsSingleIP() {
			add(r.Prefix.Addr(), r.Untranslated)
		}
	}
	for p := range before {
		if p.IsSingleIP() {
			add(p.Addr(), false)
		}
	}
	return found
}

// limited has ports limited, and returns the addresses without new ones of open ports.
func (a *Agent) limited(ctx context.Context, p vip.Plan) []vip.Address {
	if a.o.OpenPorts == nil || len(p.OpenPorts) == 0 {
		return p.Addresses
	}
	have, err := a.o.OpenPorts.Set(ctx, p.OpenPorts)
	a.logOnce("ports", err)
	without := make(map[netip.Addr]bool)
	for _, x := range p.OpenPorts {
		without[x.Addr] = true
	}
	for _, x := range have {
		delete(without, x.Addr)
	}
	for _, x := range a.last.Load().World.Bound {
		delete(without, x.Addr)
	}
	if len(without) == 0 {
		return p.Addresses
	}
	return slices.DeleteFunc(slices.Clone(p.Addresses), func(x vip.Address) bool { return without[x.Addr] })
}

// set hands want to an Applier, maybe nil, tells its error, and returns what then holds.
func set[W any](ctx context.Context, a Applier[W], want []W, name string, tell func(string, error)) (have []W) {
	if a != nil {
		var err error
		have, err = a.Set(ctx, want)
		tell(name, err)
	}
	return have
}

func put[W any](m Mailbox[W], want []W) {
	if m != nil {
		m.Put(want)
	}
}

// logOnce logs a new error of an Applier, and its end.
func (a *Agent) logOnce(applier string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if a.logged[applier] == text {
		return
	}
	a.logged[applier] = text
	if err != nil {
		a.o.Log.Warn("the node is not as planned; trying again", "applier", applier, "err", err)
	} else {
		a.o.Log.Info("the node is as planned again", "applier", applier)
	}
}
