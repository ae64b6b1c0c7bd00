package l2

import (
	"context"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// readsPerSecond is how many messages a receiver takes, for a flood to cost little: 1000 VIPs send 330 a second, and
	// all at once when they move.
	readsPerSecond = 6000
	reopenAfter    = time.Second
)

// A receiver is a goroutine that receives one family on the link of an index.
type receiver struct {
	index int
	stop  context.CancelFunc
	conn  messageReceiver // nil while it isn't open
}

// linksInUse returns the links and families with anything to do. a.mu is held.
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

// matchReceivers starts receivers for what is in use, and stops others without waiting.
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

// keepReceiving receives until ctx ends, also after failures.
func (a *Announcer) keepReceiving(ctx context.Context, r *receiver, link vip.Link, family vip.Family) {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := a.receive(ctx, r, link, family)
		if time.Since(began) > reopenAfter { // it worked for a while
			failures = 1
		}
		// before, it may only be the link going down or away
		if failures == 3 && ctx.Err() == nil {
			a.opts.Log.Warn("can't receive the announcements of other hosts, trying again every second", "link", link.Name,
				"family", family, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenAfter):
		}
	}
}

// receive hands messages of a new socket to heard until that fails, and returns why.
func (a *Announcer) receive(ctx context.Context, r *receiver, link vip.Link, family vip.Family) error {
	conn, err := a.network.openReceiver(link, family)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	a.setConn(r, conn)
	defer a.setConn(r, nil)
	limit := mailbox.Limit{PerSecond: readsPerSecond}
	for {
		m, ok, err := conn.receive()
		if err != nil {
			return err
		}
		if limit.Read() {
			a.heard.setFlooded(link.Name, time.Now())
		}
		if ok && !a.heard.receive(link.Name, m, time.Now()) {
			a.answer(link.Name, m, time.Now())
		}
	}
}

// setConn stores the open socket of r, or nil, and wakes who waits for it.
func (a *Announcer) setConn(r *receiver, conn messageReceiver) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.conn = conn
	close(a.reopened)
	a.reopened = make(chan struct{})
}

// receiving reports whether the receiver of k is open. a.mu is held.
func (a *Announcer) receiving(k linkFamily) bool {
	r := a.receivers[k]
	return r != nil && r.conn != nil
}
