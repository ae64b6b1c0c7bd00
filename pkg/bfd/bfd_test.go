package bfd

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// A link is a network between nodes of a test.
type link struct {
	sync.Mutex
	takers map[netip.Addr]func(received)
	cut    bool
	sent   int
	broken error // why no socket can be had
}

// A cable is one node's end of a link.
type cable struct {
	link *link
	own  netip.Addr
	to   netip.Addr
}

func (p cable) listen(_ bool, neighbors []netip.Addr, take func(received)) error {
	p.link.Lock()
	defer p.link.Unlock()
	delete(p.link.takers, p.own)
	if len(neighbors) > 0 && p.link.broken == nil {
		p.link.takers[p.own] = take
	}
	return p.link.broken
}

func (p cable) dial(c Config) (sender, error) { p.to = c.Neighbor; return p, nil }
func (p cable) close()                        {}
func (p cable) send(b []byte) error {
	p.link.Lock()
	p.link.sent++
	take, cut := p.link.takers[p.to], p.link.cut
	p.link.Unlock()
	if take != nil && !cut {
		x, err := parsePacket(b)
		if err != nil {
			return err
		}
		go take(received{p.own, x})
	}
	return nil
}

func (l *link) set(f func()) {
	l.Lock()
	defer l.Unlock()
	f()
}

var addressA, addressB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// run runs Sessions of a node until stop is called.
func (l *link) run(t *testing.T, own netip.Addr) (a *Sessions, stop func()) {
	a = newSessions(check.Log(t), cable{link: l, own: own})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = a.Run(ctx) }()
	return a, func() { cancel(); <-a.ended }
}

func to(n netip.Addr) Config {
	c := testConfig
	c.Neighbor = n
	return c
}

// Two nodes come up together within seconds, notice a cut after 0.9 s and not earlier, come back, and take the end of one for what it is.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{takers: make(map[netip.Addr]func(received))}
		a, stopA := l.run(t, addressA)
		b, stopB := l.run(t, addressB)
		sa := a.Start(to(addressB), func() {})
		time.Sleep(5 * time.Second)
		if x := sa.Status(); x != (Status{State: Down}) {
			t.Errorf("a neighbor without BFD: %+v", x)
		}
		l.set(func() {
			if l.sent > 7 {
				t.Errorf("%d packets in 5 s to a neighbor that does not answer, want one each 0.75 to 1 s", l.sent)
			}
		})
		sb := b.Start(to(addressA), func() {})
		expect := func(after time.Duration, want Status) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if x, y := sa.Status(), sb.Status(); x != want || y != want {
				t.Errorf("%+v, %+v, want %+v", x, y, want)
			}
		}
		expect(1100*time.Millisecond, Status{State: Up})
		l.set(func() { l.sent = 0 })
		expect(30*time.Second, Status{State: Up})
		l.set(func() {
			if l.sent < 200 || l.sent > 270 {
				t.Errorf("%d packets in 30 s, want 200 to 267", l.sent)
			}
			l.cut = true
		})
		expect(590*time.Millisecond, Status{State: Up}) // the last packet is 0.3 s old at most
		expect(320*time.Millisecond, Status{State: Down, Failures: 1, Failure: "nothing was heard of the neighbor for 900ms"})
		l.set(func() { l.cut = false })
		expect(3*time.Second, Status{State: Up, Failures: 1})
		b.Stop(sb)
		synctest.Wait()
		if x := sa.Status(); x.State != Down || x.Failures != 1 {
			t.Errorf("after the neighbor was stopped: %+v, want down without a failure", x)
		}
		a.Stop(sa)
		if x := sa.Status(); x.State != AdminDown {
			t.Errorf("%+v", x)
		}
		stopB()
		stopA()
		a.Start(to(addressB), func() {}) // does not block
	})
}

// A port that another program has is reported, and taken once it is free.
func TestPortInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{takers: make(map[netip.Addr]func(received)), broken: errors.New("in use")}
		a, stop := l.run(t, addressA)
		defer stop()
		s := a.Start(to(addressB), func() {})
		time.Sleep(2 * time.Second)
		if x := s.Status(); x.Error != "BFD does not work: in use" {
			t.Errorf("%+v", x)
		}
		l.set(func() { l.broken = nil })
		time.Sleep(2 * time.Second)
		if x := s.Status(); x.Error != "" {
			t.Errorf("%+v", x)
		}
		if x := a.Start(to(addressB), func() {}).Status(); x.Error == "" {
			t.Error("there are two sessions with a neighbor")
		}
	})
}
