// Package history remembers which Services went from which node to which, when and why, as this node has
// seen it since its process began, and measures for how long nobody answered for those that came to this node.
//
// Every node sees the moves of all, since it sees all leases; the outage is known to the node that took over only
// (docs/why.md, "History").
package history

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// maxMoves is how many moves are remembered (forgetOldest).
	maxMoves = 1000
	// maxCounted is how many series herald_vip_moves_total has at most, one for each Service.
	maxCounted = 2000
	// heardLately is how long ago the last sign of life of a node may be that hands a VIP over and answers for it
	// meanwhile.
	heardLately = time.Second
)

// A History remembers moves. Record belongs to one goroutine; Moves may be called by any.
type History struct {
	log    *slog.Logger
	moves  atomic.Pointer[[]vip.Move] // the oldest first; the slice is never changed
	outage prometheus.Histogram
	came   *prometheus.CounterVec // by Service

	// What follows belongs to Record.
	begun    bool // Record was called before
	counted  int  // series of came
	services map[vip.Key]*ownership
}

// An ownership is what is remembered of a Service.
type ownership struct {
	holder    string       // the node that had it last, be it that nobody has it now
	withdrawn bool         // that nobody has it is recorded
	counted   bool         // it has a series of History.came
	addresses []netip.Addr // which it had last
	void      bool         // its claim was not valid since holder had it
	// since when nobody has it, as far as this node knows, which is cut off the VIPs' link (mayBeElsewhere); zero: it is
	// not so
	freeSince time.Time
	movedAt   time.Time // when the last move was, as it is remembered
	seen      bool      // in the pass under way

	// lostAt is when holder was last heard, if its claim ended without its doing and no node could have the VIP then.
	lostAt  time.Time
	pending *pending // it came to this node and is not announced yet
}

// A pending is a move to this node whose outage is not known yet.
type pending struct {
	move     vip.Move
	heardAt  time.Time // when the node before was last heard, as of the move
	handOver bool      // the node before wrote the lease, and goes on answering until this one is heard
}

// New makes a History without moves.
func New(log *slog.Logger) *History {
	h := &History{log: log, services: make(map[vip.Key]*ownership),
		outage: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "herald_vip_outage_seconds", Help: "For how long nobody answered for a Service that came to this node from " +
				"another: from when that was last heard until this one announced it. 0 if it was handed over.",
			Buckets: []float64{0, .1, .25, .5, 1, 2, 5, 10, 30, 60},
		}), came: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_vip_moves_total", Help: "Times a Service came to this node from another, or came back after no " +
				"node had it; not when it was new. By Service, 2000 of them at most.",
		}, []string{"service_namespace", "service"})}
	h.moves.Store(&[]vip.Move{})
	return h
}

// Collectors are the metrics of this package.
func (h *History) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.outage, h.came}
}

// Moves returns the moves that are remembered, the oldest first. It must not be changed.
func (h *History) Moves() []vip.Move { return *h.moves.Load() }

// Record compares the owners of Services in w, and whether this node announces them, with the last call, and
// remembers and logs what has changed. What the first call finds is no move. Nothing is recorded before the caches
// are filled.
func (h *History) Record(w vip.World, p vip.Plan) {
	if !w.Synced {
		return
	}
	var added []vip.Move
	for _, o := range h.services {
		o.seen = false
	}
	for i := range p.Verdicts {
		added = append(added, h.update(&w, &p.Verdicts[i])...)
	}
	for k, o := range h.services {
		if !o.seen {
			delete(h.services, k)
			h.forget(k, o)
			if o.holder != "" && !o.withdrawn {
				added = append(added,
					vip.Move{At: w.Now, Service: k, Addresses: o.addresses, From: o.holder,
						Cause: "the Service was deleted, or is no longer of type LoadBalancer"})
			}
		}
	}
	h.begun = true
	if len(added) == 0 {
		return
	}
	for _, m := range added {
		if m.From == w.Self || m.To == w.Self {
			h.logMove(m)
		}
	}
	all := forgetOldest(slices.Concat(h.Moves(), added))
	slices.SortStableFunc(all, func(a, b vip.Move) int { return a.At.Compare(b.At) }) // some are learned late
	h.moves.Store(&all)
}

// forgetOldest returns the maxMoves of all that are remembered: as long as there are more, the oldest of the
// namespace with the most is forgotten, so that nobody makes an operator forget what happened to others. all must not
// be used again.
func forgetOldest(all []vip.Move) []vip.Move {
	counts := make(map[string]int)
	for _, m := range all {
		counts[m.Service.Namespace]++
	}
	forget := make(map[string]int) // how many, by namespace
	for n := len(all); n > maxMoves; n-- {
		most := ""
		for ns, count := range counts {
			if count > counts[most] || count == counts[most] && ns < most {
				most = ns
			}
		}
		counts[most]--
		forget[most]++
	}
	return slices.Clip(slices.DeleteFunc(all, func(m vip.Move) bool {
		forget[m.Service.Namespace]--
		return forget[m.Service.Namespace] >= 0
	}))
}

// update compares one Service, and returns its moves that are to be remembered.
func (h *History) update(w *vip.World, v *vip.Verdict) (added []vip.Move) {
	o := h.services[v.Service]
	known := o != nil
	if !known {
		o = &ownership{}
		h.services[v.Service] = o
	}
	o.seen = true
	if len(v.Addresses) > 0 {
		o.addresses = v.Addresses
	}
	claim := w.Claims[v.Lease]
	holder := ""
	if claim.Valid && !claim.Foreign && !v.Lease.IsZero() {
		holder = claim.Holder
	}
	move := vip.Move{At: w.Now, Service: v.Service, Addresses: o.addresses, From: o.holder, To: holder, Cause: claim.Cause}
	switch {
	case !known && !h.begun:
		o.holder = holder
	case holder == "" && o.holder != "" && (v.Reason == vip.VIPClaiming || o.mayBeElsewhere(w)):
		o.void = true // on its way to another node
	case holder == "" && o.holder != "" && !o.withdrawn:
		o.withdrawn, o.void = true, true
		if !o.freeSince.IsZero() {
			move.At = o.freeSince
		}
		o.movedAt = move.At
		if claim.Holder == o.holder { // not released: its node was fenced, or is gone
			o.lostAt = heardAt(w, o.holder)
		}
		move.Cause = v.Message
		added = append(added, move)
	case holder == "" || holder == o.holder && !o.withdrawn:
		o.void = o.void && holder == ""
	default:
		if o.withdrawn {
			move.From = ""
		}
		if outOfTouch := !w.Tenure.Holds(w.Now) || !w.Tenure.RenewalLateSince.IsZero(); outOfTouch &&
			claim.AcquiredAt.After(o.movedAt) && claim.AcquiredAt.Before(w.Now) {
			move.At = claim.AcquiredAt // this node learns only now of it
		}
		if move.Cause == "" && move.From != "" {
			move.Cause = whyLost(w, move.From)
		}
		o.movedAt = move.At
		if m := member(w, o.holder); m != nil && (m.Gone || !m.Alive) {
			o.void = true // fenced, and moved in the same pass
		}
		if o.holder != "" && holder == w.Self {
			h.count(v.Service, o)
		}
		added = append(added, h.begin(w, o, move)...)
	}
	if holder != "" {
		o.freeSince = time.Time{}
	}
	if o.pending != nil && (v.AnnouncedHere || holder != w.Self) {
		added = append(added, h.end(w, o, v.AnnouncedHere))
	}
	return added
}

// begin notes that move.To has the Service of o. It returns the move, but for one to this node from another, dead or
// alive, which end returns.
func (h *History) begin(w *vip.World, o *ownership, move vip.Move) []vip.Move {
	handOver, lostAt := !o.void, o.lostAt
	o.holder, o.withdrawn, o.void, o.lostAt = move.To, false, false, time.Time{}
	switch {
	case move.To != w.Self || move.From == w.Self || move.From == "" && lostAt.IsZero():
		return []vip.Move{move}
	case move.From == "":
		o.pending = &pending{move: move, heardAt: lostAt}
	default:
		o.pending = &pending{move: move, handOver: handOver, heardAt: heardAt(w, move.From)}
	}
	return nil
}

// takenWithin is how long after a node was cut off the VIPs' link it waits for another to take its VIPs, before it
// says that nobody did.
const takenWithin = 5 * time.Second

// mayBeElsewhere reports whether this node can't tell yet that nobody has the Service of o, although it knows of
// nobody: it reaches too few other nodes on the VIPs' link, and these may be about to take it.
func (o *ownership) mayBeElsewhere(w *vip.World) bool {
	self := member(w, w.Self)
	if o.withdrawn || self == nil || !self.Info.Isolated {
		return false
	}
	if o.freeSince.IsZero() {
		o.freeSince = w.Now
	}
	return w.Now.Sub(o.freeSince) < takenWithin
}

// whyLost returns why a node has lost a VIP whose lease does not say it, since the node released that: what this node
// knows of it; "" if that is nothing.
func whyLost(w *vip.World, node string) string {
	switch m := member(w, node); {
	case m == nil:
		return ""
	case m.Gone || !m.Alive:
		return node + ": " + m.WhyNotAlive()
	case m.Info.Isolated:
		return node + ": it reaches too few other nodes on the VIPs' link"
	}
	return ""
}

// member returns the node of that name, nil if it is not known.
func member(w *vip.World, name string) *vip.Member {
	if i := slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == name }); i >= 0 {
		return &w.Members[i]
	}
	return nil
}

// heardAt returns when a node was last heard; the zero Time if that is not known.
func heardAt(w *vip.World, node string) time.Time {
	if m := member(w, node); m != nil {
		return m.HeardAt
	}
	return time.Time{}
}

// count counts that a Service came to this node. It does nothing for one without a series if there are too many.
func (h *History) count(k vip.Key, o *ownership) {
	if !o.counted {
		if h.counted == maxCounted {
			return
		}
		o.counted = true
		h.counted++
	}
	h.came.WithLabelValues(k.Namespace, k.Name).Inc()
}

// forget removes the series of a Service that is gone.
func (h *History) forget(k vip.Key, o *ownership) {
	if o.counted {
		h.counted--
		h.came.DeleteLabelValues(k.Namespace, k.Name)
	}
}

// end returns the move of o.pending, with its outage if the Service is announced here.
func (h *History) end(w *vip.World, o *ownership, announced bool) vip.Move {
	p := o.pending
	o.pending = nil
	if announced && (p.handOver || !p.heardAt.IsZero()) {
		outage := max(0, w.Now.Sub(p.heardAt))
		if p.handOver && (p.heardAt.IsZero() || p.move.At.Sub(p.heardAt) < heardLately) {
			outage = 0
		}
		p.move.Outage = &outage
		h.outage.Observe(outage.Seconds())
	}
	return p.move
}

// logMove logs a move that concerns this node.
func (h *History) logMove(m vip.Move) {
	attributes := []any{"service", m.Service, "vips", m.Addresses}
	if m.From != "" {
		attributes = append(attributes, "from", m.From)
	}
	if m.To != "" {
		attributes = append(attributes, "to", m.To)
	}
	if m.Cause != "" {
		attributes = append(attributes, "why", m.Cause)
	}
	if m.Outage != nil {
		attributes = append(attributes, "outage", m.Outage.Round(time.Millisecond))
	}
	switch {
	case m.To == "":
		h.log.Info("a VIP is withdrawn: no node has it", attributes...)
	case m.From == "":
		h.log.Info("a VIP has an owner", attributes...)
	default:
		h.log.Info("a VIP has moved", attributes...)
	}
}
