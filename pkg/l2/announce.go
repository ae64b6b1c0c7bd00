package l2

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/arp"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// The first announcement is repeated, repeatGap apart, for frames lost, and since Linux takes no two changes within a
	// second (locktime). RFC 4861 section 7.2.6 allows three in all.
	repeats   = 2
	repeatGap = 1100 * time.Millisecond
	// tick is the time between calls of sendDue for what is not new: each goes through all VIPs, and wakes other nodes.
	tick = 200 * time.Millisecond
	// maxTick is the longest time between calls of sendDue while it has anything to do.
	maxTick = time.Second
	// An announcement is sent each Rate for fullRateFor after a change. Then it shares steadyRate, in frames a second,
	// with all others, but is sent each maxPeriod at least (docs/why.md, "Announcements").
	fullRateFor = 30 * time.Second
	steadyRate  = 10.0
	maxPeriod   = 2 * time.Minute
)

// An announcement is what is wanted for a target, and its progress.
type announcement struct {
	want vip.Announcement
	sent int       // how often without a failure since it was wanted, or its link changed
	next time.Time // when to send it again
	ok   bool      // the last attempt succeeded
	err  error     // why it did not; nil if it wasn't allowed or there was none

	changed  time.Time // when it was last wanted, failed or claimed by another host, or its link changed
	defended time.Time // when defend last sent it
}

func (x *announcement) restart(now time.Time) { x.sent, x.changed = 0, now }

// isSteady reports whether x was sent 1 + repeats times, long ago.
func (x *announcement) isSteady(now time.Time) bool {
	return x.sent > repeats && now.Sub(x.changed) >= fullRateFor
}

// Set replaces what is announced and listened for, sends what is new, and returns what was sent.
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
			x = &announcement{next: now, changed: now}
			a.announcements[t] = x
			added = append(added, x)
		}
		if x.want = w; w.ListenOnly {
			x.err = nil
		}
	}
	maps.DeleteFunc(a.announcements, func(t target, _ *announcement) bool { return !wanted[t] })
	maps.DeleteFunc(a.failing, func(link string, _ bool) bool { return !a.failsOn(link) })
	a.closeUnused()
	a.heard.expect(a.announcements, now)
	for _, x := range added {
		if ctx.Err() == nil && !x.want.ListenOnly {
			a.announce(x, now)
		}
	}
	a.wake.Send()
	return a.outcome()
}

// failsOn reports whether the last announcement on link failed. a.mu is held.
func (a *Announcer) failsOn(link string) bool {
	for t, x := range a.announcements {
		if t.link == link && x.err != nil {
			return true
		}
	}
	return false
}

// outcome returns what Set does, sorted by link and address. a.mu is held.
func (a *Announcer) outcome() ([]vip.Announcement, error) {
	var have []vip.Announcement
	var errs []error
	for _, t := range slices.SortedFunc(maps.Keys(a.announcements),
		func(x, y target) int { return cmp.Or(cmp.Compare(x.link, y.link), x.addr.Compare(y.addr)) }) {
		x := a.announcements[t]
		switch {
		case x.err != nil:
			errs = append(errs, fmt.Errorf("%s can't be announced on %s: %w", t.addr, t.link, x.err))
		case x.want.ListenOnly || x.ok:
			have = append(have, x.want)
		default:
			errs = append(errs, fmt.Errorf("%s is not announced on %s, since this node's right to hold it is not certain",
				t.addr, t.link))
		}
	}
	return have, vip.JoinErrors(errs)
}

// sendDue sends due announcements, and returns when to call it again.
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
	send := func(x *announcement) {
		before := x.ok
		a.announce(x, now)
		poke = poke || x.ok != before
		next = vip.Earlier(next, x.next)
	}
	steady := 0
	var due []*announcement // of those that are steady
	for _, x := range a.announcements {
		isSteady := x.isSteady(now)
		if isSteady && !x.want.ListenOnly {
			steady++
		}
		switch {
		case x.want.ListenOnly:
		case x.next.After(now):
			next = vip.Earlier(next, x.next)
		case isSteady:
			due = append(due, x)
		default:
			send(x)
		}
	}
	slices.SortFunc(due, func(x, y *announcement) int { return x.next.Compare(y.next) })
	n := a.takeBudget(len(due), steady, now)
	for _, x := range due[:n] {
		send(x)
	}
	if n < len(due) {
		next = now
	}
	if poke {
		a.opts.Poke()
	}
	return a.nextTick(now, next, tick).Sub(now)
}

// takeBudget returns how many due steady announcements may be sent. a.mu is held.
func (a *Announcer) takeBudget(due, steady int, now time.Time) int {
	rate := max(steadyRate, float64(steady)/maxPeriod.Seconds())
	a.budget = min(a.budget+rate*now.Sub(a.budgeted).Seconds(), rate*maxTick.Seconds())
	a.budgeted = now
	n := min(due, int(a.budget))
	a.budget -= float64(n)
	return n
}

// nextTick returns the first moment of a common grid after now and t, to wake less often.
func (a *Announcer) nextTick(now, t time.Time, period time.Duration) time.Time {
	since := max(t.Sub(a.started), now.Sub(a.started)+1)
	return a.started.Add((since + period - 1).Truncate(period))
}

// announce sends x's frames, unless the tenure is uncertain, and sets its next. a.mu is held.
func (a *Announcer) announce(x *announcement, now time.Time) {
	x.next = now.Add(repeatGap)
	// a process that slept may have lost its VIPs
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
	switch warned, failing := a.failing[t.link]; {
	case err != nil:
		if x.ok && !warned {
			a.opts.Log.Warn("VIPs can no longer be announced", "link", t.link, "address", t.addr, "err", err)
		}
		a.failing[t.link] = warned || x.ok
	case x.err != nil && failing:
		a.opts.Log.Info("VIPs can be announced again", "link", t.link, "address", t.addr)
		delete(a.failing, t.link)
	}
	if x.ok, x.err = err == nil, err; err != nil {
		a.metrics.errors.WithLabelValues(familyLabel(t.addr)).Inc()
		x.restart(now)
		return
	}
	if x.sent++; x.sent > repeats {
		// Jitter, or a cluster's VIPs would all be announced at once after a move.
		x.next = now.Add(a.opts.Rate*9/10 + rand.N(a.opts.Rate/5+1) - tick/2) // tick/2 passes until the next tick
	}
}

// defend announces t at once, but not again within defendInterval (RFC 5227 section 2.4 (c)).
func (a *Announcer) defend(t target, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.announcements[t]; x != nil && !x.want.ListenOnly && now.Sub(x.defended) >= defendInterval {
		x.defended, x.changed = now, now
		a.announce(x, now)
	}
}

// A silence is whether the kernel may leave a link's ARP requests unanswered.
type silence struct {
	yes bool
	at  time.Time
}

// answer replies to an ARP request for a VIP here, even while it is handed over, where the kernel may not.
func (a *Announcer) answer(link string, m neighborMessage, now time.Time) {
	if !m.asks.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := newTarget(m.asks, link)
	x, tenure := a.announcements[t], a.opts.Tenure()
	if x == nil || !x.ok || !tenure.Confirmed || !tenure.Holds(now) || !a.kernelIsSilent(link, now) {
		return
	}
	_ = a.transmit(t, now, a.metrics.sent, func(mac net.HardwareAddr) ([][]byte, error) { // who gets no reply asks again
		frame, err := replyFrame(m, mac)
		return [][]byte{frame}, err
	})
}

// kernelIsSilent reports whether a link's arp_ignore or arp_filter keeps the kernel from answering. a.mu is held.
func (a *Announcer) kernelIsSilent(link string, now time.Time) bool {
	s := a.silent[link]
	if now.Sub(s.at) >= time.Second {
		conf := a.opts.Sysctl4
		s = silence{max(conf("all", "arp_ignore"), conf(link, "arp_ignore")) > 1 ||
			conf("all", "arp_filter")+conf(link, "arp_filter") > 0, now}
		a.silent[link] = s
	}
	return s.yes
}

// replyFrame returns the ARP reply to a request: what it asks for is at mac.
func replyFrame(m neighborMessage, mac net.HardwareAddr) ([]byte, error) {
	asker := m.addr
	if m.kind == messageProbe {
		asker = netip.IPv4Unspecified()
	}
	frame, err := arpFrame(arp.OperationReply, m.asks, mac, asker, m.mac[:])
	copy(frame, m.mac[:]) // to who asks, not to all
	return frame, err
}
