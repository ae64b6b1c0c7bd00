package l2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// After the first announcement there are repeats more in both forms, repeatGap apart, for
	// neighbours that lost one, and for Linux, which doesn't let an entry change twice within
	// a second (locktime). RFC 4861 section 7.2.6 allows three in all.
	repeats   = 2
	repeatGap = 1100 * time.Millisecond
	// tick is the time between two calls of sendDue, unless something new is wanted: each goes
	// through all VIPs, and wakes up the other nodes, and a repetition may be late.
	tick = 200 * time.Millisecond
	// maxTick is the maximum time between two calls of sendDue while anything is announced or
	// asked for: the receivers' filters depend on time.
	maxTick = time.Second
)

// An announcement is what is wanted for a target, and how far it has come.
type announcement struct {
	want vip.Announcement
	sent int       // how often since it was wanted, or its link changed
	next time.Time // when to send it again
	ok   bool      // the last attempt succeeded
	err  error     // why it did not; nil if it wasn't allowed or there was none

	defended time.Time // when defend last sent it
}

// Set sends announcements at once for what is new in want, and no more for what is not in
// it; for what is ListenOnly it sends nothing. It returns what was last announced without
// an error or is ListenOnly, and for each of the rest why it was not announced. That is
// tried again by Run, and Poke follows when it succeeds. Nothing is sent if ctx has ended, nor
// while Options.Tenure is unconfirmed or over.
func (a *Announcer) Set(ctx context.Context, want []vip.Announcement) ([]vip.Announcement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	wanted := map[target]bool{}
	var added []*announcement
	for _, w := range want {
		t := newTarget(w.Addr, w.Link)
		if wanted[t] && w.ListenOnly { // what is announced is listened for, too
			continue
		}
		wanted[t] = true
		x := a.announcements[t]
		if x == nil || x.want.ListenOnly && !w.ListenOnly {
			x = &announcement{next: now}
			a.announcements[t] = x
			added = append(added, x)
		}
		if x.want = w; w.ListenOnly {
			x.err = nil
		}
	}
	before := len(a.announcements)
	maps.DeleteFunc(a.announcements, func(t target, _ *announcement) bool { return !wanted[t] })
	if len(added) > 0 || len(a.announcements) < before {
		a.widenFilters(now)
	}
	a.closeUnused()
	a.heard.expect(a.announcements, now)
	for _, x := range added {
		if ctx.Err() == nil && !x.want.ListenOnly {
			a.announce(x, now)
		}
	}
	a.wake.Send()
	return a.announced()
}

// announced returns what Set returns, sorted by link and address. a.mu is held.
func (a *Announcer) announced() ([]vip.Announcement, error) {
	var have []vip.Announcement
	var errs []error
	for _, t := range slices.SortedFunc(maps.Keys(a.announcements), func(x, y target) int { return cmp.Or(cmp.Compare(x.link, y.link), x.addr.Compare(y.addr)) }) {
		x := a.announcements[t]
		switch {
		case x.err != nil:
			errs = append(errs, fmt.Errorf("%s can't be announced on %s: %w", t.addr, t.link, x.err))
		case x.want.ListenOnly || x.ok:
			have = append(have, x.want)
		default:
			errs = append(errs, fmt.Errorf("%s is not announced on %s, since this node's right to hold it is not certain", t.addr, t.link))
		}
	}
	return have, errors.Join(errs...)
}

// sendDue sends the announcements whose time has come, and pokes if one begins to succeed
// or to fail. It forgets requests older than requestsRemembered, and sets the receivers'
// filters. It returns how long to wait until it is to be called again: an hour if nothing is
// wanted, since then Run is woken.
func (a *Announcer) sendDue(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.asked)
	maps.DeleteFunc(a.asked, func(_ linkFamily, last time.Time) bool { return now.Sub(last) > requestsRemembered })
	if len(a.asked) < before {
		a.closeUnused()
		a.wake.Send() // receivers are to be stopped
	}
	if len(a.announcements)+len(a.asked) == 0 {
		return time.Hour
	}
	poke := false
	next := now.Add(maxTick)
	for _, x := range a.announcements {
		if x.want.ListenOnly {
			continue
		}
		if !x.next.After(now) {
			before := x.ok
			a.announce(x, now)
			poke = poke || x.ok != before
		}
		next = earlier(next, x.next)
	}
	a.setFilters(now)
	if poke {
		a.opts.Poke()
	}
	return a.nextTick(now, next, tick).Sub(now)
}

// nextTick returns the first moment that is after now, not before t, and a whole number of
// periods after this node's start. What may be a little late is done at such moments, so that
// the process is woken up less often.
func (a *Announcer) nextTick(now, t time.Time, period time.Duration) time.Time {
	since := max(t.Sub(a.started), now.Sub(a.started)+1)
	return a.started.Add((since + period - 1).Truncate(period))
}

// announce sends x and sets when to do so again. It sends nothing while this node's tenure is
// unconfirmed or over: a process that was asleep may have lost its VIPs to another. The first
// announcements are sent in both forms, the repetitions after that in the first form
// (announcementFrames) only, which keeps caches and switches from forgetting. a.mu is held.
func (a *Announcer) announce(x *announcement, now time.Time) {
	x.next = now.Add(repeatGap)
	if t := a.opts.Tenure(); !t.Confirmed || !t.Holds(now) {
		return
	}
	t := newTarget(x.want.Addr, x.want.Link)
	err := a.transmit(t, now, a.metrics.sent, func(mac net.HardwareAddr) ([][]byte, error) {
		frames, err := announcementFrames(t.addr, mac)
		if err == nil && x.sent > repeats {
			frames = frames[:1]
		}
		return frames, err
	})
	switch {
	case err != nil && x.ok:
		a.opts.Log.Warn("a VIP can no longer be announced", "address", t.addr, "link", t.link, "err", err)
	case err == nil && x.err != nil:
		a.opts.Log.Info("a VIP can be announced again", "address", t.addr, "link", t.link)
	}
	if x.ok, x.err = err == nil, err; err != nil {
		a.metrics.errors.WithLabelValues(familyLabel(t.addr)).Inc()
		x.sent = 0
		return
	}
	if x.sent++; x.sent > repeats {
		// Jitter, or all VIPs of the cluster would be announced at once after a move.
		x.next = now.Add(a.opts.Rate*9/10 + rand.N(a.opts.Rate/5+1) - tick/2) // tick/2 passes until the next tick
	}
}

// defend announces t once more, at once, if this node announces it, but not twice within
// defendInterval (RFC 5227 section 2.4 (c)). That repairs the caches of those who heard another
// host claim it.
func (a *Announcer) defend(t target, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.announcements[t]; x != nil && !x.want.ListenOnly && now.Sub(x.defended) >= defendInterval {
		x.defended = now
		a.announce(x, now)
	}
}
