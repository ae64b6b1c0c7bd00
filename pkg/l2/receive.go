package l2

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// batchWindow is how long a message may wait for those that follow it. It is little beside
	// the time that a request leaves for a reply.
	batchWindow = 5 * time.Millisecond
	// batchThreshold is after how many messages that follow each other within batchWindow all
	// are read in batches.
	batchThreshold = 4
	// readTime is the most time that it takes to read a message that has arrived already.
	readTime = 50 * time.Microsecond
	// reopenAfter is the time between two attempts to open a receiver.
	reopenAfter = time.Second
)

// A receiver is an open socket that receives the messages of one family on one link.
type receiver struct {
	conn         messageReceiver
	narrow       bool // it has a filter
	filterFailed bool // the kernel did not take one
}

// A runningReceiver is a goroutine that receives on the link of that index.
type runningReceiver struct {
	index int
	stop  context.CancelFunc
}

// matchReceivers starts a goroutine for each link and family on which something is announced,
// listened for or was asked for within requestsRemembered, and stops the others, and those
// whose link was replaced by another of its name.
func (a *Announcer) matchReceivers(ctx context.Context, tasks *sync.WaitGroup, running map[linkFamily]runningReceiver) {
	needed := map[linkFamily]vip.Link{}
	a.mu.Lock()
	for t := range a.announcements {
		needed[t.linkFamily()] = a.links[t.link]
	}
	for k := range a.asked {
		needed[k] = a.links[k.link]
	}
	a.mu.Unlock()
	for k, r := range running {
		if needed[k].Index != r.index {
			r.stop()
			delete(running, k)
		}
	}
	for k, link := range needed {
		if _, ok := running[k]; ok || link.Index == 0 { // the node has no such link
			continue
		}
		own, stop := context.WithCancel(ctx)
		running[k] = runningReceiver{link.Index, stop}
		tasks.Go(func() { a.keepReceiving(own, link, k.family) })
	}
}

// keepReceiving receives until ctx ends. When it fails, it begins again after reopenAfter.
func (a *Announcer) keepReceiving(ctx context.Context, link vip.Link, family vip.Family) {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := a.receive(ctx, link, family)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > reopenAfter { // it worked for a while
			failures = 0
		}
		// The first ones may be no more than the link going down or away.
		if failures++; failures == 3 {
			a.log.Warn("can't receive the announcements of other hosts, trying again every second", "link", link.Name, "family", family, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reopenAfter):
		}
	}
}

// receive opens a receiver and stores what it receives in heard, until ctx ends or it fails.
func (a *Announcer) receive(ctx context.Context, link vip.Link, family vip.Family) error {
	conn, err := a.network.openReceiver(link, family)
	if err != nil {
		return err
	}
	defer conn.close()
	defer context.AfterFunc(ctx, func() { _ = conn.close() })()
	defer a.addReceiver(linkFamily{link.Name, family}, &receiver{conn: conn})()
	waits := 0 // messages in a row that were waited for, each for less than batchWindow
	for {
		began := time.Now()
		m, err := conn.receive()
		if err != nil {
			return err
		}
		waited := time.Since(began)
		switch {
		case waited > batchWindow:
			waits = 0
		case waited > readTime:
			waits++
		}
		own, poke, queued := a.heard.receive(link.Name, m, time.Now())
		if own {
			continue
		}
		if poke {
			a.opts.Poke()
		}
		if queued {
			a.checks.queued.Send()
		}
		if m.kind == messageAnnouncement && waited > batchWindow || waits >= batchThreshold {
			// A node's announcements come in rounds: the rest of this one is read in one go, instead
			// of being woken up for each. And so is what comes all the time.
			time.Sleep(batchWindow)
			waits = min(waits, batchThreshold-1) // so that the next batch follows at once
		}
	}
}

// addReceiver stores r among a.receivers. The returned function removes it, but not one that
// was added for k later.
func (a *Announcer) addReceiver(k linkFamily, r *receiver) (remove func()) {
	change := func(change func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		change()
		close(a.reopened)
		a.reopened = make(chan struct{})
	}
	change(func() { a.receivers[k] = r })
	return func() {
		change(func() {
			if a.receivers[k] == r {
				delete(a.receivers, k)
			}
		})
	}
}

// On a link with many hosts and VIPs most messages concern this node not at all: hosts ask for
// each other, and each VIP is announced to everybody. Each such frame would wake the process
// up, so the kernel leaves them out.

// setFilters has each receiver's kernel filter leave out what doesn't concern this node, if
// announcements and checked have been the same for listenAfter and another host was heard on
// the link within a quarter of linkSilentAfter; else the filter is taken off: while nobody is
// heard any message shows that the link works. A kernel that refused a filter isn't asked
// again. a.mu is held.
func (a *Announcer) setFilters(now time.Time) {
	for k, r := range a.receivers {
		narrow := now.Sub(a.widened) > listenAfter && a.heard.since(k.link, now) < linkSilentAfter/4
		if narrow == r.narrow || narrow && r.filterFailed {
			continue
		}
		var senders []netip.Addr
		if narrow {
			senders = a.concerns(k)
		}
		if err := r.conn.setFilter(narrow, senders); err != nil {
			r.filterFailed = true
			a.log.Debug("the kernel does not leave out the ARP requests between other hosts", "link", k.link, "family", k.family, "err", err)
			continue
		}
		r.narrow = narrow
	}
}

// widenFilters takes the filters off for listenAfter: what they have to let pass is about to
// change. a.mu is held.
func (a *Announcer) widenFilters(now time.Time) {
	a.widened = now
	a.setFilters(now)
}

// concerns returns the addresses of which each message on k is needed: those that are
// announced, listened for or checked. a.mu is held.
func (a *Announcer) concerns(k linkFamily) []netip.Addr {
	var list []netip.Addr
	for t := range a.announcements {
		if t.linkFamily() == k {
			list = append(list, t.addr)
		}
	}
	for t := range a.checked {
		if t.linkFamily() == k && a.announcements[t] == nil {
			list = append(list, t.addr)
		}
	}
	return list
}

// checkEvery has the filters let pass every message about these targets, in place of those of
// the last call.
func (a *Announcer) checkEvery(targets map[target]bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.checked
	a.checked = targets
	for t := range targets {
		if !before[t] && a.announcements[t] == nil {
			a.widenFilters(now)
			return
		}
	}
}
