package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// States of a client, named after those of RFC 2131 section 4.4. RFC 8415 has the same
// states for DHCPv6 and no names for them.
//
//	           +---------- refused, or unanswered and not leased any more -----------+
//	           v                                                                     |
//	+--> SELECTING -- offer --> REQUESTING -- ack --> CHECKING            INIT-REBOOT (something is recorded)
//	|          ^                  | refused              | free                |
//	|          |<-----------------+                      v                     | ack, or unanswered but
//	|          |<---- in use: decline, 10 s ---------- BOUND <-----------------+ still leased
//	|          |                                         | T1
//	|          |<----- refused ------------------- RENEWING (the server) --- ack --> BOUND
//	|          |                                         | T2
//	|          |<----- refused, expired -------- REBINDING (any server) --- ack --> BOUND
//	|          |
//	+- pause --+ after Options.Attempts attempts
//
// In every state it may be stopped (another node goes on), or told to decline the address or to release it.
const (
	stateSelecting  = "selecting"
	stateRequesting = "requesting"
	stateChecking   = "checking"
	stateBound      = "bound"
	stateRenewing   = "renewing"
	stateRebinding  = "rebinding"
	stateInitReboot = "init-reboot"
	stateReleasing  = "releasing"
)

const (
	// minLease is the shortest lease accepted: shorter ones can't be renewed in time.
	minLease = 5 * time.Second
	// declinePause is between a DECLINE and the next attempt (RFC 2131 section 3.1.5), twice that after each more in a
	// row, up to 3 hours: servers keep what was declined from all clients, maybe for a day.
	declinePause = 10 * time.Second
	// attemptsPause is after Options.Attempts attempts, give or take a quarter.
	attemptsPause = 30 * time.Second
	// linkPause is before another try of a link, and the first pause after an answer not accepted.
	linkPause = time.Second
	// firstReport is after how many unanswered attempts the user is told.
	firstReport = 3
	// inUseChecks is how often neighbours are asked about an address before its use.
	inUseChecks = 3
)

// A client keeps the lease of one DHCPRequest; others only read state and ended, and call instruct and cancel.
type client struct {
	o        *Options
	metrics  metrics
	request  vip.DHCPRequest // what it was made for
	protocol protocol
	cancel   context.CancelFunc

	latest    atomic.Pointer[vip.DHCPRequest]    // request, with another Declined, Release or Requested by now
	interrupt atomic.Pointer[context.CancelFunc] // ends what run is doing, so that it looks at latest
	state     atomic.Pointer[vip.DHCPState]      // written by run only; its Request is out of date
	ended     atomic.Bool
	offered   vip.DHCPLease // the latest, which the server may have granted; run's
	declines  int           // how many addresses it declined, until one was renewed; run's
}

// A protocol is DHCPv4 or DHCPv6. Methods block until servers answer, or time or ctx ends. Errors are errNoAnswer,
// errRefused, errLink, or why an answer was not accepted.
type protocol interface {
	// confirm asks whether k, this client's earlier lease, still holds.
	confirm(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error)
	// obtain makes one attempt to get a lease, maybe of preferred, from any server; attempt, from 0, decides the wait.
	obtain(ctx context.Context, attempt int, preferred netip.Addr) (vip.DHCPLease, error)
	// renew asks k's server until k.Rebinds, or, if rebind, any server until k.Expires. errRefused is that k has ended.
	renew(ctx context.Context, k vip.DHCPLease, rebind bool) (vip.DHCPLease, error)
	decline(ctx context.Context, k vip.DHCPLease, why string) error
	// release tells k's server that the address is free.
	release(ctx context.Context, k vip.DHCPLease) error
}

var (
	errNoAnswer = errors.New("no DHCP server answered")
	errRefused  = errors.New("refused")
	errLink     = errors.New("the link can't be used")
)

// newClient makes a client for r, which begins with an own r.LastLease that is not over.
func newClient(o *Options, m metrics, r vip.DHCPRequest) *client {
	x := &client{o: o, metrics: m, request: r}
	x.latest.Store(&r)
	x.protocol = &protocol6{x}
	if r.Family == vip.IPv4 {
		x.protocol = &protocol4{client: x}
	}
	state := vip.DHCPState{State: stateSelecting}
	if x.recorded() {
		state.State = stateInitReboot
		if r.LastLease.Valid(time.Now()) {
			state.Lease = r.LastLease
		}
	}
	x.state.Store(&state)
	return x
}

// recorded reports whether a lease of this client's was recorded earlier.
func (x *client) recorded() bool {
	k := x.request.LastLease
	return k.Addr.IsValid() && k.MAC == x.request.MAC
}

// instruct replaces the request: Declined and Release count at once, Requested at the next attempt, nothing else.
func (x *client) instruct(r vip.DHCPRequest) {
	before := x.latest.Swap(&r)
	release := r.Release && !before.Release
	decline := r.Declined.IsValid() && r.Declined != before.Declined && r.Declined == x.state.Load().Lease.Addr
	if interrupt := x.interrupt.Load(); interrupt != nil && (release || decline) {
		(*interrupt)()
	}
}

// update changes the published state, and pokes if that makes a difference.
func (x *client) update(change func(*vip.DHCPState)) {
	before := *x.state.Load()
	now := before
	change(&now)
	if now == before {
		return
	}
	x.state.Store(&now)
	x.countLease(before.Lease, now.Lease)
	x.o.Poke()
}

func (x *client) countLease(before, now vip.DHCPLease) {
	gauge := x.metrics.leases.WithLabelValues(x.request.Family.String())
	if before.Addr.IsValid() {
		gauge.Dec()
	}
	if now.Addr.IsValid() {
		gauge.Inc()
	}
}

func (x *client) countFailure(kind string) {
	x.metrics.failures.WithLabelValues(x.request.Family.String(), kind).Inc()
}

func (x *client) lose(kind, why string) {
	x.countFailure(kind)
	x.update(func(s *vip.DHCPState) {
		if s.Lease.Addr.IsValid() {
			x.o.Log.Warn("a DHCP lease is lost", "address", s.Lease.Addr, "link", x.request.Link, "why", why)
		}
		s.State, s.Lease, s.Lost, s.Problem = stateSelecting, vip.DHCPLease{}, true, why
	})
}

func expiry(k vip.DHCPLease) string {
	if k.Expires.IsZero() {
		return "never"
	}
	return k.Expires.UTC().Format(time.RFC3339)
}

// run goes from state to state until ctx ends, or the lease has been given back.
func (x *client) run(ctx context.Context) {
	x.countLease(vip.DHCPLease{}, x.state.Load().Lease)
	defer func() { x.countLease(x.state.Load().Lease, vip.DHCPLease{}) }()
	for first := true; ctx.Err() == nil; first = false {
		step, cancel := context.WithCancel(ctx)
		x.interrupt.Store(&cancel)
		r, k := *x.latest.Load(), x.state.Load().Lease // whoever changes latest from here on finds interrupt
		switch {
		case r.Release:
			cancel()
			x.release(ctx, cmp.Or(k, x.offered))
			return
		case r.Declined.IsValid() && r.Declined == k.Addr:
			x.decline(step, k, r.DeclinedWhy)
		case first && x.recorded():
			x.reboot(step)
		case k.Addr.IsValid():
			x.keep(step)
		default:
			x.acquire(step)
		}
		cancel()
	}
}

func (x *client) release(ctx context.Context, k vip.DHCPLease) {
	if !k.Addr.IsValid() {
		return
	}
	x.update(func(s *vip.DHCPState) { s.State = stateReleasing })
	if err := x.protocol.release(ctx, k); err != nil {
		x.o.Log.Warn("can't give a DHCP lease back, it stays until it expires", "address", k.Addr, "err", err)
		return
	}
	x.o.Log.Info("gave a DHCP lease back", "address", k.Addr, "link", x.request.Link, "server", k.Server)
}

func (x *client) decline(ctx context.Context, k vip.DHCPLease, why string) {
	x.lose(failDeclined, fmt.Sprintf("the server %s leases %s, which is declined: %s", k.Server, k.Addr, why))
	if err := x.protocol.decline(ctx, k, why); err != nil {
		x.o.Log.Debug("DHCP decline", "err", err)
	}
	mailbox.Sleep(ctx, jitter(declinePause<<min(x.declines, 10), 4))
	x.declines++
}

// reboot goes on with the recorded lease (RFC 2131 section 3.2), unanswered until it expires, unless it is refused.
func (x *client) reboot(ctx context.Context) {
	k := x.request.LastLease
	got, err := x.protocol.confirm(ctx, k)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		x.accept(ctx, got, k.Addr)
	case errors.Is(err, errRefused):
		x.lose(failRefused, fmt.Sprintf("%s, which was leased before: %v", k.Addr, err))
	case k.Valid(time.Now()):
		x.countFailure(failNoAnswer)
		k.Renews, k.Rebinds = time.Now(), time.Now()
		x.update(func(s *vip.DHCPState) { s.State, s.Lease, s.Problem = stateRebinding, k, "" })
	default:
		x.countFailure(failNoAnswer)
		x.update(func(s *vip.DHCPState) { s.State, s.Lost = stateSelecting, true })
	}
}

// accept makes k the lease. A new address that a neighbour has is declined.
func (x *client) accept(ctx context.Context, k vip.DHCPLease, before netip.Addr) {
	if k.Addr != before {
		x.offered = k
		x.update(func(s *vip.DHCPState) { s.State = stateChecking })
		for range inUseChecks {
			if mac, used := x.o.InUse(ctx, x.request.Link, k.Addr); used && mac != x.request.MAC {
				x.decline(ctx, k, "it is in use by "+mac)
				return
			}
			if ctx.Err() != nil {
				return
			}
		}
	}
	x.update(func(s *vip.DHCPState) {
		if s.Lease.Addr != k.Addr {
			x.o.Log.Info("leased an address", "address", k.Addr, "link", x.request.Link, "server", k.Server, "expires",
				expiry(k))
		}
		s.State, s.Lease, s.Lost, s.Problem = stateBound, k, false, ""
	})
}

// acquire asks for a lease until it has one, or ctx ends, with pauses after Options.Attempts attempts.
func (x *client) acquire(ctx context.Context) {
	began, total, nextReport, reported := time.Now(), 0, firstReport, ""
	for attempt := 0; ctx.Err() == nil; {
		x.update(func(s *vip.DHCPState) { s.State = stateSelecting })
		k, err := x.protocol.obtain(ctx, attempt, cmp.Or(x.latest.Load().Requested, x.request.LastLease.Addr))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			x.accept(ctx, k, netip.Addr{})
			return
		case errors.Is(err, errLink): // that was no attempt
			x.reportProblem(err.Error())
			continue
		case errors.Is(err, errNoAnswer):
			x.countFailure(failNoAnswer)
		default:
			mailbox.Sleep(ctx, jitter(linkPause<<min(attempt, 5), 4)) // it was answered at once
		}
		attempt++
		total++
		// Each report is an Event: ever more seldom, unless the problem is new.
		if text := err.Error(); total >= nextReport || text != reported && !errors.Is(err, errNoAnswer) {
			x.reportProblem(fmt.Sprintf("%s on %s (tried %d times in %v)", text, x.request.Link, total,
				time.Since(began).Round(time.Second)))
			reported, nextReport = text, max(2*total, firstReport)
		}
		if a := x.o.Attempts; a > 0 && attempt%a == 0 {
			mailbox.Sleep(ctx, jitter(attemptsPause, 4))
			attempt = 0
		}
	}
}

// reportProblem publishes why there is no lease yet, and logs the first problem.
func (x *client) reportProblem(problem string) {
	x.update(func(s *vip.DHCPState) {
		if s.Problem == "" {
			x.o.Log.Warn("no address from DHCP yet", "problem", problem)
		}
		s.Problem = problem
	})
}

// keep renews the lease until it is lost, a server gives another address, or ctx ends.
func (x *client) keep(ctx context.Context) {
	for ctx.Err() == nil {
		k := x.state.Load().Lease
		if k.Expires.IsZero() && k.Renews.IsZero() {
			<-ctx.Done()
			return
		}
		mailbox.Sleep(ctx, time.Until(k.Renews))
		got, err := x.renew(ctx, k)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			x.metrics.renewals.WithLabelValues(x.request.Family.String()).Inc()
			x.accept(ctx, got, k.Addr)
			if got.Addr != k.Addr {
				return
			}
			x.declines = 0
		case errors.Is(err, errRefused):
			x.lose(failRefused, fmt.Sprintf("the lease of %s could not be renewed: %v", k.Addr, err))
			return
		default:
			x.lose(failExpired, fmt.Sprintf("the lease of %s has expired: no server renewed it since %s: %v", k.Addr,
				k.Renews.UTC().Format(time.RFC3339), err))
			return
		}
	}
}

// renew asks k's server until T2 (RENEWING), then any until k expires (REBINDING), a server ends it, or ctx ends.
func (x *client) renew(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	phases := []struct {
		state  string
		rebind bool
		end    time.Time
	}{{stateRenewing, false, k.Rebinds}, {stateRebinding, true, k.Expires}}
	var err error = errNoAnswer
	for _, p := range phases {
		if !p.end.IsZero() && !time.Now().Before(p.end) {
			continue
		}
		x.update(func(s *vip.DHCPState) {
			s.State = p.state
			if p.rebind {
				s.Problem = fmt.Sprintf("%s does not renew the lease of %s; asking any server, until %s", k.Server, k.Addr,
					expiry(k))
			}
		})
		phase, cancel := ctx, context.CancelFunc(func() {})
		if !p.end.IsZero() {
			phase, cancel = context.WithDeadline(ctx, p.end)
		}
		got, problem := x.protocol.renew(phase, k, p.rebind)
		for errors.Is(problem, errLink) && phase.Err() == nil {
			got, problem = x.protocol.renew(phase, k, p.rebind)
		}
		cancel()
		if err = problem; err == nil || errors.Is(err, errRefused) || ctx.Err() != nil {
			return got, err
		}
		x.countFailure(failNoAnswer)
	}
	return vip.DHCPLease{}, err
}
