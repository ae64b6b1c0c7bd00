package l2

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// listenAfter is how long unwanted addresses are listened for: they may return in another role.
	listenAfter = 2 * time.Second
	// maxQueue is how many messages wait for AddressChecks; floods are dropped.
	maxQueue = 10000
)

// heard is what other hosts sent, and who waits for it. Its methods lock mu.
type heard struct {
	announcements prometheus.Counter
	poke          func()
	queued        mailbox.Signal // to AddressChecks: queue is not empty

	// mu guards what follows. It is not Announcer.mu, so that receivers never wait for sending.
	mu        sync.Mutex
	ownMACs   map[[6]byte]bool
	expected  map[target]*expectation
	lastHeard map[string]time.Time // when another host was last heard, by link
	flooded   map[string]time.Time // when messages were last dropped since there were too many, by link
	resolving map[target][]chan<- [6]byte
	checked   map[target]bool // what AddressChecks takes from queue
	queue     []queuedMessage
}

type expectation struct {
	listenOnly bool
	unwanted   time.Time             // since when it isn't wanted any more, or zero
	poke       bool                  // the next announcement by another host is worth a poke
	poked      time.Time             // when one last was
	last       vip.HeardAnnouncement // the last one, or zero
}

type queuedMessage struct {
	link    string
	message neighborMessage
}

// receive hands another host's message to who waits for it; own is true of this node's.
func (h *heard) receive(link string, m neighborMessage, now time.Time) (own bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ownMACs[m.mac] {
		return true
	}
	h.lastHeard[link] = now
	t := target{m.addr, link}
	if e := h.expected[t]; e != nil && m.kind != messageProbe {
		h.announcements.Inc()
		mac := net.HardwareAddr(m.mac[:]).String()
		since := now.Sub(e.poked)
		e.poke = e.poke || since >= defendInterval || since >= time.Second && mac != e.last.MAC
		e.last = vip.HeardAnnouncement{MAC: mac, Link: link, At: now}
		if e.poke && e.unwanted.IsZero() {
			e.poke, e.poked = false, now
			h.poke()
		}
	}
	for _, replies := range h.resolving[t] {
		if m.kind == messageReply || m.addr.Is6() { // an advertisement to a probe is unsolicited (RFC 4861 section 7.2.4)
			select {
			case replies <- m.mac:
			default: // it has one already
			}
		}
	}
	if h.checked[t] && len(h.queue) < maxQueue {
		h.queue = append(h.queue, queuedMessage{link, m})
		h.queued.Send()
	}
	return false
}

// expect stores the targets to listen for; former ones a moment longer.
func (h *heard) expect(wanted map[target]*announcement, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, e := range h.expected {
		if wanted[t] == nil && e.unwanted.IsZero() {
			e.unwanted = now
		}
		if !e.unwanted.IsZero() && now.Sub(e.unwanted) > listenAfter {
			delete(h.expected, t)
		}
	}
	for t, x := range wanted {
		e := h.expected[t]
		if e == nil {
			e = &expectation{poke: true}
			h.expected[t] = e
		}
		e.poke = e.poke || e.listenOnly != x.want.ListenOnly
		e.listenOnly, e.unwanted = x.want.ListenOnly, time.Time{}
	}
}

// lastAnnouncements returns, by wanted address, another host's last message that was no probe.
func (h *heard) lastAnnouncements() map[netip.Addr]vip.HeardAnnouncement {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[netip.Addr]vip.HeardAnnouncement{}
	for t, e := range h.expected {
		if e.unwanted.IsZero() && e.last.At.After(all[t.addr].At) {
			all[t.addr] = e.last
		}
	}
	return all
}

// since returns how long ago another host was heard on a link; centuries if none was.
func (h *heard) since(link string, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.lastHeard[link])
}

// setFlooded stores that messages on a link were dropped at now.
func (h *heard) setFlooded(link string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flooded[link] = now
}

// floodedSince reports whether messages, maybe a reply, were dropped on a link after t.
func (h *heard) floodedSince(link string, t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flooded[link].After(t)
}

// setOwnMACs replaces this node's MAC addresses, whose messages are ignored.
func (h *heard) setOwnMACs(own map[[6]byte]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ownMACs = own
}

// forwardReplies sends to replies, with room for one, who has t, until stop.
func (h *heard) forwardReplies(t target, replies chan<- [6]byte) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resolving[t] = append(h.resolving[t], replies)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.resolving[t] = slices.DeleteFunc(h.resolving[t], func(c chan<- [6]byte) bool { return c == replies })
		if len(h.resolving[t]) == 0 {
			delete(h.resolving, t)
		}
	}
}

// setChecked has messages about these targets queued; the map must not be changed.
func (h *heard) setChecked(targets map[target]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checked = targets
}

func (h *heard) takeQueue() []queuedMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	queue := h.queue
	h.queue = nil
	return queue
}

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
		if !mailbox.Sleep(ctx, reopenAfter) {
			return
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
