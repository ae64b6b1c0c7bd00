package lab

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A WhoHas regularly sends ARP requests (RFC 826) or Neighbour Solicitations (RFC 4861) from the host pr, and records
// who answers.
//
// Answers count by when the kernel got them, so a process that wakes late makes no gap.
type WhoHas struct {
	self  host
	names map[string]string // hardware address -> host
	every time.Duration
	began time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup // sender and receivers
	conns map[uint16]*socket.Conn

	mu      sync.Mutex // guards what follows, and the targets
	targets []*target
	byAddr  map[netip.Addr]*target
	err     error // the first that kept a request from being sent
}

type target struct {
	addr      netip.Addr
	request   []byte
	requested []time.Time // wall clock
	answers   []answer
	changed   chan struct{} // closed with the next request or answer; nil if nobody waits
}

type answer struct {
	at  time.Time // wall clock
	who string    // a host of the lab, or another's hardware address
}

// WhoHas starts to ask for each of addrs once per every, spread over the interval, until Stop or ctx.
func (l *Lab) WhoHas(ctx context.Context, every time.Duration, addrs ...netip.Addr) (*WhoHas, error) {
	w := &WhoHas{self: l.host("pr"), names: map[string]string{}, every: every, began: time.Now().Round(0),
		conns: map[uint16]*socket.Conn{}, byAddr: map[netip.Addr]*target{}}
	for _, h := range l.hosts {
		w.names[h.mac(0x77).String()] = h.name
	}
	for _, a := range addrs {
		q, err := marshalRequest(w.self, a)
		if err != nil {
			return nil, fmt.Errorf("who has %s: %w", a, err)
		}
		t := &target{addr: a, request: q}
		w.targets, w.byAddr[a] = append(w.targets, t), t
	}
	for _, etherType := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
		c, err := listenPackets("pr", etherType)
		if err != nil {
			w.close()
			return nil, fmt.Errorf("who has: %w", err)
		}
		w.conns[etherType] = c
	}
	ctx, w.stop = context.WithCancel(ctx)
	for _, c := range w.conns {
		w.done.Go(func() { w.receiveAnswers(c) })
	}
	w.done.Go(func() {
		w.sendRequests(ctx)
		// for the answers to the last requests
		time.Sleep(min(every, 100*time.Millisecond))
		w.close()
	})
	return w, nil
}

func (w *WhoHas) close() {
	for _, c := range w.conns {
		c.Close()
	}
}

// sendRequests asks until ctx is done. A process that was kept from running leaves rounds out.
func (w *WhoHas) sendRequests(ctx context.Context) {
	if len(w.targets) == 0 {
		<-ctx.Done()
		return
	}
	step := w.every / time.Duration(len(w.targets))
	tick := time.NewTicker(max(step, time.Millisecond))
	defer tick.Stop()
	began, next := time.Now(), 0
	for {
		now := int(time.Since(began) / step)
		if late := now - next - len(w.targets); late > 0 {
			next += late / len(w.targets) * len(w.targets) // only complete rounds are left out
		}
		for ; next <= now; next++ {
			w.sendRequest(w.targets[next%len(w.targets)])
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *WhoHas) sendRequest(t *target) {
	etherType := uint16(unix.ETH_P_IPV6)
	if t.addr.Is4() {
		etherType = unix.ETH_P_ARP
	}
	w.mu.Lock() // so that no answer is recorded before its request
	defer w.mu.Unlock()
	at := time.Now().Round(0)
	if _, err := w.conns[etherType].Write(t.request); err != nil {
		w.setError(fmt.Errorf("send request for %s: %w", t.addr, err))
		return
	}
	t.requested = append(t.requested, at)
	t.notify()
}

// setError stores the first error; w.mu is held.
func (w *WhoHas) setError(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *WhoHas) receiveAnswers(c *socket.Conn) {
	buf, oob := make([]byte, 2048), make([]byte, 256)
	for {
		frame, at, err := readFrame(c, buf, oob)
		if err != nil {
			return // closed: there is no other error on a packet socket of a link that stays
		}
		addr, mac, ok := parseAnswer(w.self, frame)
		if !ok {
			continue
		}
		w.mu.Lock()
		if t := w.byAddr[addr]; t != nil {
			t.answers = append(t.answers, answer{at, w.hostName(mac)})
			t.notify()
		}
		w.mu.Unlock()
	}
}

func (w *WhoHas) hostName(mac string) string {
	if n, ok := w.names[mac]; ok {
		return n
	}
	return mac
}

// notify wakes those who wait for t; w.mu is held.
func (t *target) notify() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// awaitChange calls look, with w.mu held, now and at each request and answer for addr, until true; an error if addr is
// not asked for, or ctx ends.
func (w *WhoHas) awaitChange(ctx context.Context, addr netip.Addr, what string, look func(*target) bool) error {
	for {
		w.mu.Lock()
		t := w.byAddr[addr]
		if t == nil {
			w.mu.Unlock()
			return fmt.Errorf("who has %s: nobody asked", addr)
		}
		if look(t) {
			w.mu.Unlock()
			return nil
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("who has %s: waiting for %s, last answered by %q: %w", addr, what, w.Owner(addr),
				context.Cause(ctx))
		}
	}
}

// AwaitAnswer returns when the node, or any with "", first answers for addr after the call.
func (w *WhoHas) AwaitAnswer(ctx context.Context, addr netip.Addr, node string) (time.Time, error) {
	since := time.Now()
	var at time.Time
	err := w.awaitChange(ctx, addr, "an answer by "+node, func(t *target) bool {
		for i := len(t.answers) - 1; i >= 0 && t.answers[i].at.After(since); i-- {
			if node == "" || t.answers[i].who == node {
				at = t.answers[i].at
			}
		}
		return !at.IsZero()
	})
	return at, err
}

// AwaitAnswers waits until the node, or any with "", has answered for every address since the call.
func (w *WhoHas) AwaitAnswers(ctx context.Context, node string) error {
	var g errgroup.Group
	for _, t := range w.targets {
		g.Go(func() error {
			_, err := w.AwaitAnswer(ctx, t.addr, node)
			return err
		})
	}
	return g.Wait()
}

// AwaitSilence waits for three rounds without an answer for addr, and returns when the last one came, or zero.
func (w *WhoHas) AwaitSilence(ctx context.Context, addr netip.Addr) (time.Time, error) {
	var last time.Time
	err := w.awaitChange(ctx, addr, "silence", func(t *target) bool {
		if len(t.answers) > 0 {
			last = t.answers[len(t.answers)-1].at
		}
		// The latest question may still be answered.
		return len(t.requested) >= 4 && last.Before(t.requested[len(t.requested)-4])
	})
	return last, err
}

// Owner is who answered for addr last, in one of the last two rounds, or "".
func (w *WhoHas) Owner(addr netip.Addr) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.byAddr[addr]
	if t == nil || len(t.answers) == 0 {
		return ""
	}
	last := t.answers[len(t.answers)-1]
	if n := len(t.requested); n > 1 && last.at.Before(t.requested[n-2]) {
		return ""
	}
	return last.who
}

// Stop ends the requests, waits a moment for the last answers, and reports. It may be called again.
func (w *WhoHas) Stop() WhoHasReport {
	w.stop()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := WhoHasReport{Every: w.every, Began: w.began, Ended: time.Now().Round(0), Err: w.err}
	for _, t := range w.targets {
		r.Addrs = append(r.Addrs, t.report(r.Began, r.Ended, w.every))
	}
	return r
}
