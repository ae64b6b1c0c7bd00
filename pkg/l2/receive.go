package l2

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/rawio"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// batchWindow is how long a message may wait for those that follow it. It is little beside
	// the time that a request leaves for a reply.
	batchWindow = 5 * time.Millisecond
	// batchThreshold is after how many messages that follow each other within batchWindow all
	// are read in batches.
	batchThreshold = 4
	// readTime is the maximum time that it takes to read a message that has arrived already.
	readTime = 50 * time.Microsecond
	// readsPerSecond is how many messages a receiver takes, so that a flood costs some hundredths of a
	// core. 1000 VIPs are announced 330 times a second, and at once when they all move.
	readsPerSecond = 6000
	// reopenAfter is the time between two attempts to open a receiver.
	reopenAfter = time.Second
)

// A receiver is a goroutine that receives the messages of one family on the link of an index.
type receiver struct {
	index        int
	stop         context.CancelFunc
	conn         messageReceiver // nil while it isn't open
	narrow       bool            // conn has a filter
	filterFailed bool            // the kernel did not take one
}

// linksInUse returns the links and families on which something is announced or listened for,
// or a request was sent within requestsRemembered. a.mu is held.
func (a *Announcer) linksInUse() map[linkFamily]bool {
	used := map[linkFamily]bool{}
	for t := range a.announcements {
		used[t.linkFamily()] = true
	}
	for k := range a.asked {
		used[k] = true
	}
	return used
}

// matchReceivers starts a receiver, a goroutine in tasks, for each link and family in use that
// has none, if the link exists. It stops those no longer in use, and those whose link has gone
// or was replaced by another of its name, without waiting for their end. It locks a.mu.
func (a *Announcer) matchReceivers(ctx context.Context, tasks *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	used := a.linksInUse()
	for k, r := range a.receivers {
		if !used[k] || a.links[k.link].Index != r.index {
			r.stop()
			delete(a.receivers, k)
		}
	}
	for k := range used {
		link, ok := a.links[k.link]
		if !ok || a.receivers[k] != nil {
			continue
		}
		own, stop := context.WithCancel(ctx)
		r := &receiver{index: link.Index, stop: stop}
		a.receivers[k] = r
		tasks.Go(func() { a.keepReceiving(own, r, link, k.family) })
	}
}

// keepReceiving receives until ctx ends. When that fails, it begins again after reopenAfter.
// The third failure in a row is logged, as a warning and once; one after more than reopenAfter
// of receiving is a first one again.
func (a *Announcer) keepReceiving(ctx context.Context, r *receiver, link vip.Link, family vip.Family) {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := a.receive(ctx, r, link, family)
		if time.Since(began) > reopenAfter { // it worked for a while
			failures = 1
		}
		// The first ones may be no more than the link going down or away.
		if failures == 3 && ctx.Err() == nil {
			a.opts.Log.Warn("can't receive the announcements of other hosts, trying again every second", "link", link.Name, "family", family, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenAfter):
		}
	}
}

// receive opens a socket for r without a filter (setConn), and hands each message to heard,
// until ctx ends, which closes the socket, or something fails; it returns that error, never
// nil. To be woken up less often it sleeps for batchWindow before it reads on: after an
// announcement that comes after a pause, since more follow, and after batchThreshold messages
// in quick succession. Beyond readsPerSecond the kernel drops messages, which heard is told.
func (a *Announcer) receive(ctx context.Context, r *receiver, link vip.Link, family vip.Family) error {
	conn, err := a.network.openReceiver(link, family)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	a.setConn(r, conn)
	defer a.setConn(r, nil)
	waits := 0 // messages in a row that were waited for, each for less than batchWindow
	limit := rawio.Limit{PerSecond: readsPerSecond}
	for {
		began := time.Now()
		m, ok, err := conn.receive()
		if err != nil {
			return err
		}
		waited := time.Since(began)
		if limit.Read() {
			a.heard.setFlooded(link.Name, time.Now())
		}
		if !ok {
			continue
		}
		switch {
		case waited > batchWindow:
			waits = 0
		case waited > readTime:
			waits++
		}
		if own := a.heard.receive(link.Name, m, time.Now()); own {
			continue
		}
		if m.kind == messageAnnouncement && waited > batchWindow || waits >= batchThreshold {
			// A node's announcements come in rounds: the rest of this one is read in one go, instead
			// of being woken up for each. And so is what comes all the time.
			time.Sleep(batchWindow)
			waits = min(waits, batchThreshold-1) // so that the next batch follows at once
		}
	}
}

// setConn stores the open socket of r, which has no filter yet, or nil when it was closed, and
// wakes up each Resolve that waits for that (reopened). It locks a.mu.
func (a *Announcer) setConn(r *receiver, conn messageReceiver) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.conn, r.narrow, r.filterFailed = conn, false, false
	close(a.reopened)
	a.reopened = make(chan struct{})
}

// receiving reports whether there is a receiver of k and its socket is open. a.mu is held.
func (a *Announcer) receiving(k linkFamily) bool {
	r := a.receivers[k]
	return r != nil && r.conn != nil
}

// On a link with hundreds of hosts and VIPs most messages do not concern this node: hosts ask for
// each other, and each VIP is announced to all. Each such frame would wake the process up, so
// the kernel filters them out (docs/why.md, "Wake-ups").

// setFilters has the kernel drop, for each open receiver, the ARP requests (no probes) whose
// sender is none of filterSenders, if the targets of announcements and unfiltered have been
// the same for listenAfter, and another host was heard on the link within a quarter of
// linkSilentAfter. Else it takes the filter off: while nobody is heard any message shows that
// the link works. A receiver whose filter is on or off as it should be is left alone. A
// failure is logged (debug), and that receiver gets no filter until it is opened again. a.mu
// is held.
func (a *Announcer) setFilters(now time.Time) {
	for k, r := range a.receivers {
		narrow := now.Sub(a.widened) > listenAfter && a.heard.since(k.link, now) < linkSilentAfter/4
		if r.conn == nil || narrow == r.narrow || narrow && r.filterFailed {
			continue
		}
		var senders []netip.Addr
		if narrow {
			senders = a.filterSenders(k)
		}
		if err := r.conn.setFilter(narrow, senders); err != nil {
			r.filterFailed = true
			a.opts.Log.Debug("the kernel does not leave out the ARP requests between other hosts", "link", k.link, "family", k.family, "err", err)
			continue
		}
		r.narrow = narrow
	}
}

// widenFilters takes all filters off now, and keeps setFilters from setting any for
// listenAfter: the targets that they have to let pass have changed. a.mu is held.
func (a *Announcer) widenFilters(now time.Time) {
	a.widened = now
	a.setFilters(now)
}

// filterSenders returns the addresses on k from which a filter has to let ARP requests pass:
// those that are announced, listened for, probed or defended; some twice. a.mu is held.
func (a *Announcer) filterSenders(k linkFamily) []netip.Addr {
	var list []netip.Addr
	for _, targets := range []iter.Seq[target]{maps.Keys(a.announcements), maps.Keys(a.unfiltered)} {
		for t := range targets {
			if t.linkFamily() == k {
				list = append(list, t.addr)
			}
		}
	}
	return list
}

// setUnfiltered stores the targets about which the filters are to drop nothing, in place of
// those of the last call. If the set differs, all filters of all receivers are taken off for
// listenAfter (widenFilters). The map must not be changed afterwards. It locks a.mu.
func (a *Announcer) setUnfiltered(targets map[target]bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !maps.Equal(a.unfiltered, targets) {
		a.unfiltered = targets
		a.widenFilters(now)
	}
}
