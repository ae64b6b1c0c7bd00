package agent

import (
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// maxCounted is how many series, one a Service, herald_vip_moves_total has.
	maxCounted = 2000
	// heardLately is how old the last sign of life may be of a node that hands a VIP over, and answers meanwhile.
	heardLately = time.Second
)

// A History logs and counts the Services that come to this node and leave it, and for how long nobody answered for
// those that came. It belongs to the goroutine that calls Record. The table has all nodes' moves (pkg/lease).
type History struct {
	metric.Set
	log      *slog.Logger
	outage   prometheus.Histogram
	came     *prometheus.CounterVec // by Service
	begun    bool                   // Record was called before
	counted  int                    // series of came
	services map[vip.Key]*ownership
}

// An ownership is what is remembered of a Service.
type ownership struct {
	holder  string // the node that had it last, be it that nobody has it now
	counted bool   // it has a series of History.came
	void    bool   // its claim was not valid since holder had it
	seen    bool   // in the pass under way

	withdrawn bool // nobody is to have it
	// lostAt is when holder was last heard, if its claim ended without its doing and no node could have the VIP then.
	lostAt  time.Time
	pending *pending // it came to this node and is not announced yet
}

// A pending is a move to this node with unknown outage.
type pending struct {
	from, cause string
	handOver    bool      // the node before wrote the table, and goes on answering until this one is heard
	movedAt     time.Time // when this node saw it
	heardAt     time.Time // when the node before was last heard, as of then
}

// NewHistory makes a History.
func NewHistory(log *slog.Logger) *History {
	h := &History{log: log, services: make(map[vip.Key]*ownership)}
	h.outage = metric.Add(&h.Set, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "herald_vip_outage_seconds", Help: "For how long nobody answered for a Service that came to this node from " +
			"another: from when that was last heard until this one announced it. 0 if it was handed over.",
		Buckets: []float64{0, .1, .25, .5, 1, 2, 5, 10, 30, 60},
	}))
	h.came = metric.Counters(&h.Set, "herald_vip_moves_total", "Times a Service came to this node from another, or came "+
		"back after no node had it; not when it was new. By Service, 2000 of them at most.", "service_namespace", "service")
	return h
}

// Record compares owners of Services in w, and whether this node announces them, with the last call; the first finds no
// move. Nothing is recorded before the caches are filled.
func (h *History) Record(w vip.World, p vip.Plan) {
	if !w.Synced {
		return
	}
	for _, o := range h.services {
		o.seen = false
	}
	for i := range p.Verdicts {
		h.update(&w, &p.Verdicts[i])
	}
	for k, o := range h.services {
		if !o.seen {
			delete(h.services, k)
			h.forget(k, o)
			if o.holder == w.Self && !o.withdrawn {
				h.log.Info(withdrawnText, "service", k, "why",
					"the Service was deleted, or is no longer of type LoadBalancer")
			}
		}
	}
	h.begun = true
}

// withdrawnText says that this node has lost a VIP, and knows of no other that has it.
const withdrawnText = "a VIP has left this node, which knows of no other that has it"

func (h *History) update(w *vip.World, v *vip.Verdict) {
	o := h.services[v.Service]
	known := o != nil
	if !known {
		o = &ownership{}
		h.services[v.Service] = o
	}
	o.seen = true
	claim := w.Claims[v.Lease]
	holder := ""
	if claim.Valid && !claim.Foreign && !v.Lease.IsZero() {
		holder = claim.Holder
	}
	switch {
	case !known && !h.begun:
		o.holder = holder
	case holder == "" && o.holder != "" && !o.withdrawn:
		o.void = true // on its way to another node, or
		if v.Reason != vip.VIPClaiming {
			o.withdrawn = true
			if claim.Holder == o.holder { // not released: its node was fenced, or is gone
				o.lostAt = heardAt(w, o.holder)
			}
			if o.holder == w.Self {
				h.log.Info(withdrawnText, "service", v.Service, "vips", v.Addresses, "why", v.Message)
			}
		}
	case holder == "" || holder == o.holder && !o.withdrawn:
		o.void = o.void && holder == ""
	default:
		h.move(w, v, o, &claim)
	}
	if o.pending != nil && (v.AnnouncedHere || holder != w.Self) {
		h.end(w, v, o)
	}
}

// move notes that the holder of a valid claim has the Service of o.
func (h *History) move(w *vip.World, v *vip.Verdict, o *ownership, c *vip.Claim) {
	from, lostAt := o.holder, o.lostAt
	if o.withdrawn {
		from = ""
	}
	if m := member(w, o.holder); m != nil && (m.Gone || !m.Alive) {
		o.void = true // fenced, and moved in the same pass
	}
	handOver := !o.void
	if c.Holder == w.Self {
		if o.holder != "" {
			h.count(v.Service, o)
		}
		o.pending = &pending{from: from, cause: c.Cause, movedAt: w.Now, heardAt: lostAt}
		if from != "" && from != w.Self {
			o.pending.handOver, o.pending.heardAt = handOver, heardAt(w, from)
		}
	} else if from == w.Self {
		h.log.Info("a VIP has moved", "service", v.Service, "vips", v.Addresses, "from", from, "to", c.Holder, "why", c.Cause)
	}
	o.holder, o.withdrawn, o.void, o.lostAt = c.Holder, false, false, time.Time{}
}

// member returns the node of that name, or nil.
func member(w *vip.World, name string) *vip.Member {
	if i := slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == name }); i >= 0 {
		return &w.Members[i]
	}
	return nil
}

// heardAt returns when a node was last heard, or zero.
func heardAt(w *vip.World, node string) time.Time {
	if m := member(w, node); m != nil {
		return m.HeardAt
	}
	return time.Time{}
}

// count counts that a Service came here, unless there are too many series.
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

func (h *History) forget(k vip.Key, o *ownership) {
	if o.counted {
		h.counted--
		h.came.DeleteLabelValues(k.Namespace, k.Name)
	}
}

// end logs a move to this node, with its outage if the Service is announced.
func (h *History) end(w *vip.World, v *vip.Verdict, o *ownership) {
	p := o.pending
	o.pending = nil
	message, attributes := "a VIP has an owner", []any{"service", v.Service, "vips", v.Addresses, "to", w.Self}
	if p.from != "" {
		message, attributes = "a VIP has moved", append(attributes, "from", p.from)
	}
	if p.cause != "" {
		attributes = append(attributes, "why", p.cause)
	}
	if v.AnnouncedHere && (p.handOver || !p.heardAt.IsZero()) {
		outage := max(0, w.Now.Sub(p.heardAt))
		if p.handOver && (p.heardAt.IsZero() || p.movedAt.Sub(p.heardAt) < heardLately) {
			outage = 0
		}
		h.outage.Observe(outage.Seconds())
		attributes = append(attributes, "outage", outage.Round(time.Millisecond))
	}
	h.log.Info(message, attributes...)
}
