// Package bfd notices within a second that a neighbor on the link does not answer, and lets it notice the same: BFD
// (RFC 5880) over one hop (RFC 5881), asynchronous, without echo packets and authentication.
package bfd

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"
)

// A Config is what one session is to be. It is comparable.
type Config struct {
	Neighbor netip.Addr // with the link as its zone if it is link-local
	Source   netip.Addr // this node's address; zero leaves it to the kernel
	Link     string     // the link that packets must leave by, or ""

	MinTransmit time.Duration // Desired Min TX Interval, whole microseconds; at least 1 s is used until the session is up
	MinReceive  time.Duration // Required Min RX Interval, whole microseconds, not 0
	Multiplier  uint8         // Detect Mult: so many packets may be lost that the neighbor notices; not 0
}

// A Status is what is known of a session.
type Status struct {
	State    State
	Failures int    // how often a session that was up failed; not counted if an administrator of the neighbor ended it
	Failure  string // why it failed last; "" once it is up again
	Error    string // why nothing can be sent or received; "" for no error
}

// A Session is one session. Its State is followed by Sessions.Run.
type Session struct {
	config  Config
	status  atomic.Pointer[Status]
	changed func()

	// What follows belongs to Run.
	machine machine
	sender  sender
}

// Status is the session's at present, without blocking.
func (s *Session) Status() Status { return *s.status.Load() }

type sender interface {
	send(b []byte) error
	close()
}

type received struct {
	from   netip.Addr
	packet packet
}

// A network is where packets come from and go to: the kernel's, but for tests.
type network interface {
	// listen has packets of the neighbors, all of one family, given to take, in place of what was asked before; take stays
	// the same.
	listen(ip6 bool, neighbors []netip.Addr, take func(received)) error
	dial(c Config) (sender, error)
}

// Sessions is all sessions of this node.
type Sessions struct {
	log      *slog.Logger
	network  network
	commands chan func(time.Time) // for Run, which owns what follows
	packets  chan received
	ended    chan struct{} // closed when Run has returned

	byNeighbor map[netip.Addr]*Session
	listenErr  [2]error // of the sockets for IPv4 and IPv6
}

// New makes Sessions, which need Run.
func New(log *slog.Logger) *Sessions { return newSessions(log, &kernel{}) }

func newSessions(log *slog.Logger, n network) *Sessions {
	return &Sessions{
		log: log, network: n, commands: make(chan func(time.Time)), packets: make(chan received), ended: make(chan struct{}),
		byNeighbor: make(map[netip.Addr]*Session),
	}
}

// Start starts a session, and blocks until Run takes it; changed is called for new Statuses, and must not block. A
// second session with a neighbor has an Error.
func (a *Sessions) Start(c Config, changed func()) *Session {
	s := &Session{config: c, changed: changed}
	s.status.Store(&Status{State: Down})
	a.do(func(now time.Time) {
		if a.byNeighbor[c.Neighbor] != nil {
			s.set(func(x *Status) { x.Error = "there is a BFD session with this neighbor already" })
			return
		}
		s.machine = newMachine(c, rand.Uint32N(1<<32-1)+1, now)
		a.byNeighbor[c.Neighbor] = s
		a.listen(c.Neighbor.Is6())
	})
	return s
}

// Stop ends a session; the neighbor hears that it is an administrator's will, no failure (RFC 5882 section 3.2).
func (a *Sessions) Stop(s *Session) {
	a.do(func(now time.Time) {
		if a.byNeighbor[s.config.Neighbor] == s {
			a.end(s, now)
			a.listen(s.config.Neighbor.Is6())
		}
	})
}

// end tells the neighbor, three times, as packets may be lost, and forgets the session.
func (a *Sessions) end(s *Session, now time.Time) {
	s.machine.state, s.machine.diag, s.machine.poll = AdminDown, diagAdminDown, false
	for range 3 {
		a.send(s, now)
	}
	if s.sender != nil {
		s.sender.close()
	}
	delete(a.byNeighbor, s.config.Neighbor)
	s.set(func(x *Status) { x.State = AdminDown })
}

// do has Run call f, and waits. Nothing happens if Run has returned.
func (a *Sessions) do(f func(now time.Time)) {
	done := make(chan struct{})
	select {
	case a.commands <- func(now time.Time) { f(now); close(done) }:
		<-done
	case <-a.ended:
	}
}

// Run keeps the sessions until ctx ends, of which neighbors are not told.
func (a *Sessions) Run(ctx context.Context) error {
	defer close(a.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-a.commands:
			f(time.Now())
		case x := <-a.packets:
			if s := a.byNeighbor[x.from]; s != nil {
				a.follow(s, s.machine.receive(x.packet, time.Now()))
			}
		case <-timer.C:
		}
		timer.Reset(a.work())
	}
}

// work does what is due, and returns when something is again.
func (a *Sessions) work() time.Duration {
	now := time.Now()
	next := now.Add(time.Hour)
	for _, s := range a.byNeighbor {
		m := &s.machine
		a.follow(s, m.expire(now))
		if !m.nextSend.IsZero() && !m.nextSend.After(now) {
			a.send(s, now)
		}
		for _, at := range []time.Time{m.nextSend, m.expires} {
			if !at.IsZero() && at.Before(next) {
				next = at
			}
		}
	}
	return time.Until(next)
}

func (a *Sessions) follow(s *Session, failure string) {
	if x := s.Status(); x.State == s.machine.state && failure == "" {
		return
	}
	s.set(func(x *Status) {
		x.State = s.machine.state
		switch {
		case failure != "":
			x.Failures, x.Failure = x.Failures+1, failure
		case x.State == Up:
			x.Failure = ""
		}
	})
	a.log.Debug("BFD", "neighbor", s.config.Neighbor, "state", s.machine.state, "failure", failure)
}

func (s *Session) set(change func(*Status)) {
	x := s.Status()
	before := x
	change(&x)
	if x != before {
		s.status.Store(&x)
		s.changed()
	}
}

// send sends the packet that is due. A failure makes a new socket for the next: this node's address may have gone. A
// neighbor without BFD refuses packets, which is no error.
func (a *Sessions) send(s *Session, now time.Time) {
	p := s.machine.send(now, rand.Float64())
	ip6 := s.config.Neighbor.Is6()
	if a.listenErr[familyIndex(ip6)] != nil {
		a.listen(ip6) // the other program may have ended
	}
	err := a.listenErr[familyIndex(ip6)]
	if err == nil && s.sender == nil {
		s.sender, err = a.network.dial(s.config)
	}
	if err == nil {
		if err = s.sender.send(p.marshal()); err != nil {
			s.sender.close()
		}
	}
	text := ""
	if err != nil {
		s.sender, text = nil, "BFD does not work: "+err.Error()
	}
	s.set(func(x *Status) { x.Error = text })
}

func familyIndex(ip6 bool) int {
	if ip6 {
		return 1
	}
	return 0
}

func (a *Sessions) listen(ip6 bool) {
	var neighbors []netip.Addr
	for n := range a.byNeighbor {
		if n.Is6() == ip6 {
			neighbors = append(neighbors, n)
		}
	}
	a.listenErr[familyIndex(ip6)] = a.network.listen(ip6, neighbors, func(x received) {
		select {
		case a.packets <- x:
		case <-a.ended:
		}
	})
}
