package l2

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Times of inquiries.
const (
	// As many probes, so far apart, are sent before an address is used, and an answer
	// to the last is waited for as long: 120 ms in all. RFC 5227 section 2.1.1 takes
	// some seconds, and section 2.2 allows less where the network does: one in which
	// VIPs move within a second has no ports that take seconds to come up.
	probes   = 3
	probeGap = 40 * time.Millisecond
	// unaskable is how long it is tried to ask before the answer is that nobody can be.
	unaskable = time.Second
	askAgain  = 2 * time.Millisecond
	// An address that another host has is asked for again after firstPause, and each
	// time after twice as long, up to lastPause (RATE_LIMIT_INTERVAL of RFC 5227 section 1.1).
	firstPause = 5 * time.Second
	lastPause  = time.Minute
	// defendInterval is the least time between two defences of an address, and between
	// two rounds of questions about it (DEFEND_INTERVAL of RFC 5227 section 1.1).
	defendInterval = 10 * time.Second

	// A node sends as many checks of others' VIPs as abreast, each checkGap, however many
	// VIPs there are, judges answers no more often, and checks no VIP more often than every
	// checkRest. A VIP that has just moved is left alone for as long.
	abreast   = 2
	checkGap  = grain
	checkRest = 5 * time.Second
	// checkWait is how long an answer may take. Who does not answer is asked again
	// after checkAgain, and so misses times before it counts.
	checkWait  = 500 * time.Millisecond
	checkAgain = time.Second
	misses     = 4
	// quietLink is how long nobody at all may have been heard on a link before it is
	// this node that is cut off.
	quietLink = 10 * time.Second
	// stepGap is the least time between two steps.
	stepGap = time.Millisecond
	// never is far away.
	never = 1000 * time.Hour
)

// Inquiries is the part of the node that asks its neighbours about VIPs: whether
// a new one is free, whether others claim those it has, and whether other nodes
// answer for theirs. Announcer.Run does the asking.
type Inquiries struct {
	a    *Announcer
	wake chan struct{} // capacity 1

	inbox struct {
		sync.Mutex
		words []letter
	}

	mu       sync.Mutex // guards what follows
	last     []vip.AddressCheck
	cases    map[netip.Addr]*inquest
	all      []*inquest // cases, as a list: it is gone through ten times a second
	defended map[topic]time.Time
	due      time.Time // when there is something to do, unless a word changes that
	turn     time.Time // when the next check may be sent
	odd      bool      // checks that follow others go first at every other turn
}

// A letter is a word and where it was heard.
type letter struct {
	link string
	word word
}

func newInquiries(a *Announcer) *Inquiries {
	return &Inquiries{a: a, wake: make(chan struct{}, 1), cases: map[netip.Addr]*inquest{}, defended: map[topic]time.Time{}}
}

// Inquiries is the part that asks.
func (a *Announcer) Inquiries() *Inquiries { return a.inquiries }

// Set asks what is newly wanted and forgets about the rest. It never fails: what
// can't be asked is a Finding that says so.
func (q *Inquiries) Set(_ context.Context, want []vip.AddressCheck) ([]vip.AddressCheck, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.Equal(want, q.last) {
		return q.last, nil
	}
	q.last = slices.Clone(want)
	now := time.Now()
	news := false
	wanted := make(map[netip.Addr]bool, len(want))
	for _, w := range q.last {
		key := w.Addr.Unmap().WithZone("")
		wanted[key] = true
		switch x := q.cases[key]; {
		case x == nil:
			q.cases[key] = q.open(w, now)
		case !x.want.Same(w):
			x.stop()
			q.cases[key] = q.open(w, now)
		case x.allow(w):
			news = true
		}
	}
	for key, x := range q.cases {
		if !wanted[key] {
			x.stop()
			delete(q.cases, key)
		}
	}
	q.all = slices.Collect(maps.Values(q.cases))
	q.count()
	q.due = time.Time{}
	q.rouse()
	if news {
		q.a.opts.Poke()
	}
	return q.last, nil
}

// open begins to ask w.
func (q *Inquiries) open(w vip.AddressCheck, now time.Time) *inquest {
	t := topic{w.Addr.Unmap().WithZone(""), w.Link}
	x := &inquest{want: w, topic: t, next: now, rivals: map[string]*rival{}}
	if w.Kind == vip.CheckVerify { // spread, or all of a node's VIPs would be due at once
		x.next = now.Add(checkRest + rand.N(checkRest))
	}
	x.defend = w.Kind == vip.CheckDefend
	x.stop = q.a.questions.listen(t, func(heard word) { q.post(letter{w.Link, heard}) })
	if w.Kind != vip.CheckVerify { // of those the answers are enough
		deaf, careless := x.stop, q.a.heed(t, now)
		x.stop = func() {
			deaf()
			careless()
		}
	}
	return x
}

// post keeps a word for the loop. It never waits for that.
func (q *Inquiries) post(l letter) {
	const most = 10000 // who floods the link with claims need not be heard in full
	q.inbox.Lock()
	if len(q.inbox.words) < most {
		q.inbox.words = append(q.inbox.words, l)
	}
	q.inbox.Unlock()
	q.rouse()
}

func (q *Inquiries) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Observe fills in Findings. What is as it should be is left out, but for the
// addresses of this node.
func (q *Inquiries) Observe(w *vip.World) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	for key, x := range q.cases {
		if f := x.finding; !f.At.IsZero() && (x.want.Kind != vip.CheckVerify || !f.OK() || !f.ClearedAt.IsZero()) {
			w.CheckResults[key] = f
		}
	}
}

// run asks until ctx ends.
func (q *Inquiries) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
			if wait := stepGap - time.Since(last); wait > 0 { // a flood of claims is read in heaps
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		last = time.Now()
		timer.Reset(q.step(last))
	}
}

// step does what is due, and returns how long until there is something again.
func (q *Inquiries) step(now time.Time) time.Duration {
	q.inbox.Lock()
	words := q.inbox.words
	q.inbox.words = nil
	q.inbox.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	news := false
	for _, l := range words {
		x := q.cases[l.word.addr]
		if x == nil || x.topic.link != l.link {
			continue
		}
		news = x.hear(l.word, now) || news
		if x.defend || x.next.Before(q.due) {
			q.due = time.Time{}
		}
	}
	if !q.due.After(now) {
		news = q.look(now) || news
	}
	if news {
		q.count()
		q.a.opts.Poke()
	}
	return max(q.due.Sub(now), stepGap)
}

// look goes through all cases, and reports whether there is news. Most words change
// nothing that it would see, and answers to checks wait until the next check.
func (q *Inquiries) look(now time.Time) bool {
	news := false
	own, theirs := now.Add(never), now.Add(never)
	for _, x := range q.all {
		if x.defend {
			x.defend = false
			q.defence(x.topic, now)
		}
		if x.want.Kind != vip.CheckVerify {
			if !x.next.After(now) {
				news = q.probe(x, now) || news
			}
			own = earlier(own, x.next)
			continue
		}
		if x.asking && !x.next.After(now) {
			news = q.judge(x, now) || news
		}
		theirs = earlier(theirs, x.next)
	}
	if !q.turn.After(now) {
		for range abreast {
			if x := q.first(now); x != nil {
				q.check(x, now)
			}
		}
	}
	if theirs.Before(q.turn) {
		theirs = q.turn
	}
	q.due = earlier(own, theirs)
	return news
}

// first is whose check is to be sent first of those that are due, or nil.
func (q *Inquiries) first(now time.Time) *inquest {
	var first *inquest
	for _, x := range q.all {
		if x.want.Kind == vip.CheckVerify && !x.asking && !x.next.After(now) && (first == nil || q.before(x, first)) {
			first = x
		}
	}
	return first
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// defence announces an address of this node at once, but not twice within
// defendInterval (RFC 5227 section 2.4 (c)).
func (q *Inquiries) defence(t topic, now time.Time) {
	for t, at := range q.defended {
		if now.Sub(at) >= defendInterval {
			delete(q.defended, t)
		}
	}
	if _, lately := q.defended[t]; lately {
		return
	}
	q.defended[t] = now
	q.a.insist(t, now)
}

// count sets the gauges.
func (q *Inquiries) count() {
	counts := map[string]float64{}
	for _, x := range q.all {
		if x.finding.NoAnswer {
			counts["unanswered"]++
		}
		if len(x.finding.UnexpectedMACs) > 0 {
			counts[map[vip.CheckKind]string{vip.CheckProbe: "in_use", vip.CheckDefend: "contested", vip.CheckVerify: "foreign"}[x.want.Kind]]++
		}
	}
	for _, what := range wrongs {
		q.a.meters.wrong.WithLabelValues(what).Set(counts[what])
	}
}
