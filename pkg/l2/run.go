package l2

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// quick announcements follow the first, at least gap apart: for neighbours that lost one,
	// and for Linux, which doesn't let an entry change twice within a second
	// (locktime). RFC 4861 section 7.2.6 allows three in all.
	quick = 2
	gap   = 1100 * time.Millisecond
	// grain is the time between two rounds of Run, unless something new is wanted: each
	// looks at all VIPs, and wakes up the other nodes, and a repetition may wait.
	grain = 200 * time.Millisecond
	// anew is how old the last look at the links may be for a link that it did not show.
	anew = 20 * time.Millisecond
	// lull is how long an announcement may wait for those that follow it. It is little
	// beside the time that probes leave for an answer.
	lull = 5 * time.Millisecond
	// hubbub is how many words that come one by one, each within lull, are heeded at once.
	// On a link where many hosts ask for each other nobody is kept waiting by being heard in heaps.
	hubbub = 4
	// atOnce is how long it takes at most to read a word that need not be waited for.
	atOnce = 50 * time.Microsecond
)

// Run repeats the announcements and listens to those of others, until ctx ends.
// For 333 VIPs that costs a third of a hundredth of a core (see BenchmarkSecond).
func (a *Announcer) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer a.hangUp()
	defer tasks.Wait()
	tasks.Go(func() { a.inquiries.run(ctx) })
	listening := map[hearing]context.CancelFunc{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		woken := false
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
			woken = true
		case <-timer.C:
		}
		wait, turned := a.round(time.Now())
		if woken || turned {
			a.attend(ctx, &tasks, listening)
		}
		timer.Reset(wait)
	}
}

// hangUp closes the links that were asked on only.
func (a *Announcer) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.asked)
	a.links.keep(a.used())
}

// round says what is due and returns how long until there is something again.
// turned reports whether the links were looked at since the last one, or a question
// is no longer asked: other ears may be needed.
func (a *Announcer) round(now time.Time) (wait time.Duration, turned bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, last := range a.asked {
		if now.Sub(last) > attention {
			delete(a.asked, k)
			turned = true
		}
	}
	if len(a.speech)+len(a.asked) == 0 {
		a.links.keep(nil)
		return time.Hour, turned // Set wakes it, and so does a question
	}
	a.links.look(now)
	turned = turned || !a.links.looked.Equal(a.known)
	a.known = a.links.looked
	a.ears.know(a.links.own())
	news := false
	next := now.Add(relook)
	for t, s := range a.speech {
		if s.want.ListenOnly {
			continue
		}
		if a.links.changed[t.link] {
			s.said, s.next = 0, now
		}
		if !s.next.After(now) {
			before := s.ok
			a.say(s, now)
			news = news || s.ok != before
		}
		if s.next.Before(next) {
			next = s.next
		}
	}
	clear(a.links.changed)
	a.sift(now)
	if news {
		a.opts.Poke()
	}
	return a.beat(now, next, grain).Sub(now), turned
}

// beat is the first moment after now that is not before t and a whole number of
// steps after this node's first. What may wait a little is done at such moments, so
// that the process is woken up less often.
func (a *Announcer) beat(now, t time.Time, step time.Duration) time.Time {
	since := max(t.Sub(a.born), now.Sub(a.born)+1)
	return a.born.Add((since + step - 1).Truncate(step))
}

// say announces s and decides when to do so again. It keeps silent while the
// node's right to hold VIPs is not certain: a process that was asleep may have
// lost them to another.
func (a *Announcer) say(s *speech, now time.Time) {
	s.next = now.Add(gap)
	if t := a.opts.Tenure(); !t.Confirmed || !t.Holds(now) {
		return
	}
	err := a.send(s, now)
	a.report(s, err)
	if s.ok, s.err = err == nil, err; err != nil {
		s.said = 0
		return
	}
	if s.said++; s.said > quick {
		// Jitter, or all VIPs of the cluster would speak at once after a move.
		s.next = now.Add(a.opts.Rate*9/10 + time.Duration(rand.Int64N(int64(a.opts.Rate/5)+1)) - grain/2) // grain/2 passes until the next round
	}
}

// send puts s on the wire: in both forms at first, in one form for ever after.
// That one is the ARP request (RFC 5227 section 3) or the advertisement to all
// nodes: enough to keep caches and switches from forgetting. To alternate between
// the forms instead would halve the rate for a neighbour that heeds only one.
func (a *Announcer) send(s *speech, now time.Time) error {
	name, addr := s.want.Link, s.want.Addr.Unmap().WithZone("")
	st, err := a.reach(name, now)
	if err != nil {
		return err
	}
	frames, err := announcement(addr, st.ifi.HardwareAddr)
	if err != nil {
		return err
	}
	if s.said > quick {
		frames = frames[:1]
	}
	for _, f := range frames {
		if err := st.mouth.send(f); err != nil {
			a.links.failed(name, err)
			return err
		}
		a.meters.sent.WithLabelValues(family(addr)).Inc()
	}
	return nil
}

// reach opens a link if it isn't open. a.mu is held.
func (a *Announcer) reach(link string, now time.Time) (*station, error) {
	if a.links.all == nil || a.links.open[link] == nil {
		if _, known := a.links.all[link]; !known && now.Sub(a.links.looked) > anew {
			a.links.looked = time.Time{} // it may have been made a moment ago
		}
		a.links.look(now)
		a.ears.know(a.links.own())
	}
	return a.links.station(link)
}

// reachable says why a link can't be used, or nil.
func (a *Announcer) reachable(link string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.reach(link, now)
	return err
}

// insist announces what this node has once more, at once: that repairs the caches
// of those who heard another claim it. What follows is the usual repetition.
func (a *Announcer) insist(t topic, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.speech[t]; s != nil && !s.want.ListenOnly {
		a.say(s, now)
	}
}

// report logs when an announcement begins to fail, or works again.
func (a *Announcer) report(s *speech, err error) {
	if err != nil {
		a.meters.errors.WithLabelValues(family(s.want.Addr.Unmap())).Inc()
	}
	switch {
	case err != nil && s.ok:
		a.log.Warn("a VIP can no longer be announced", "address", s.want.Addr, "link", s.want.Link, "err", err)
	case err == nil && s.err != nil:
		a.log.Info("a VIP can be announced again", "address", s.want.Addr, "link", s.want.Link)
	}
}

// A hearing is one ear's job.
type hearing struct {
	link   string
	index  int
	family vip.Family
}

// attend has an ear for each link and family in use, and none for others.
func (a *Announcer) attend(ctx context.Context, tasks *sync.WaitGroup, listening map[hearing]context.CancelFunc) {
	needed := map[hearing]bool{}
	a.mu.Lock()
	for t := range a.speech {
		if ifi, ok := a.links.all[t.link]; ok {
			needed[hearing{t.link, ifi.Index, vip.FamilyOf(t.addr)}] = true
		}
	}
	for k := range a.asked {
		if ifi, ok := a.links.all[k.link]; ok {
			needed[hearing{k.link, ifi.Index, k.family}] = true
		}
	}
	a.mu.Unlock()
	for h, cancel := range listening {
		if !needed[h] {
			cancel()
			delete(listening, h)
		}
	}
	for h := range needed {
		if listening[h] == nil {
			own, cancel := context.WithCancel(ctx)
			listening[h] = cancel
			tasks.Go(func() { a.listen(own, h) })
		}
	}
}

// listen hears until ctx ends, with a new ear each second if need be.
func (a *Announcer) listen(ctx context.Context, h hearing) {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := a.hear(ctx, h)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > relook { // it worked for a while
			failures = 0
		}
		// The first ones may be no more than the link going down or away.
		if failures++; failures == 3 {
			a.log.Warn("can't hear who else announces VIPs, trying again every second", "link", h.link, "family", h.family, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(relook):
		}
	}
}

// hear opens an ear and hears with it until that fails.
func (a *Announcer) hear(ctx context.Context, h hearing) error {
	a.mu.Lock()
	ifi := a.links.all[h.link]
	a.mu.Unlock()
	e, err := a.lan.listen(ifi, h.family)
	if err != nil {
		return err
	}
	defer e.close()
	defer context.AfterFunc(ctx, func() { _ = e.close() })()
	defer a.opens(&listener{hearing: h, ear: e})()
	crowd := 0 // how many words were waited for, each for less than lull
	for {
		began := time.Now()
		w, err := e.next()
		if err != nil {
			return err
		}
		waited := time.Since(began)
		switch {
		case waited > lull:
			crowd = 0
		case waited > atOnce:
			crowd++
		}
		first := !w.alone && waited > lull
		if a.ears.isOwn(w.mac) {
			continue
		}
		a.ears.noise(h.link, time.Now())
		if !w.probe && a.ears.hear(h.link, w, time.Now()) {
			a.opts.Poke()
		}
		a.questions.hear(h.link, w)
		if first || crowd >= hubbub {
			// Announcements come in rounds: the rest of this one is read in one go, instead of
			// being woken up for each. And so is what comes all the time.
			time.Sleep(lull)
			crowd = min(crowd, hubbub-1) // and so is the next heap
		}
	}
}
