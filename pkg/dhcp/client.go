package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// States of a client, named after those of RFC 2131 section 4.4. DHCPv6 has no
// names for them, and the same states.
//
//	           +------------- refused, or silent and not leased any more ------------+
//	           v                                                                     |
//	+--> SELECTING -- offer --> REQUESTING -- ack --> CHECKING            INIT-REBOOT (something is recorded)
//	|          ^                  | refused              | free                |
//	|          |<-----------------+                      v                     | ack, or silent but
//	|          |<---- in use: decline, 10 s ---------- BOUND <-----------------+ still leased
//	|          |                                         | T1
//	|          |<----- refused ------------------- RENEWING (the server) --- ack --> BOUND
//	|          |                                         | T2
//	|          |<----- refused, expired -------- REBINDING (any server) --- ack --> BOUND
//	|          |
//	+-- rest --+ after some tries
//
// In every state the client may be dropped (another node goes on), or told to
// decline the address or to release it.
const (
	selecting  = "selecting"
	requesting = "requesting"
	checking   = "checking"
	bound      = "bound"
	renewing   = "renewing"
	rebinding  = "rebinding"
	rebooting  = "init-reboot"
	releasing  = "releasing"
)

const (
	// least is the shortest lease that is of use: shorter ones could not be renewed in time.
	least = 5 * time.Second
	// afterDecline is how long a client waits after it has declined (RFC 2131 section 3.1.5).
	afterDecline = 10 * time.Second
	// rest is how long a client rests after Options.Attempts tries, give or take a quarter.
	rest = 30 * time.Second
	// reopen is how long a link that can't be opened is left alone.
	reopen = time.Second
	// outAfter is after how many unanswered tries the user is told.
	outAfter = 3
)

// A client works on one Hire.
type client struct {
	all    *Clients
	hire   vip.DHCPRequest // what it was made for
	proto  protocol
	cancel context.CancelFunc

	// Guarded by all.mu.
	now     vip.DHCPState
	stopped bool // it is to end: another one follows, or none
	ended   bool
	refuse  netip.Addr // the address it was told to decline
	release bool
	heed    context.CancelCauseFunc // ends what it is doing, so that it looks at its orders
}

// protocol is DHCPv4 or DHCPv6.
type protocol interface {
	// reboot asks for k, which was leased before: a new Contract, errRefused,
	// or errSilent.
	reboot(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error)
	// find gets a Contract from any server; it does not say whether the address is free.
	// It tries once, the tries count for how long to wait.
	find(ctx context.Context, try int, ask netip.Addr) (vip.DHCPLease, error)
	// prolong renews k: by its server until k.Rebinds, or by any.
	prolong(ctx context.Context, k vip.DHCPLease, any bool) (vip.DHCPLease, error)
	decline(ctx context.Context, k vip.DHCPLease, why string) error
	release(ctx context.Context, k vip.DHCPLease) error
}

var (
	errSilent  = errors.New("no DHCP server answered")
	errRefused = errors.New("refused")
	errLocal   = errors.New("the link can't be used")
	errOrder   = errors.New("there is an order")
)

func newClient(all *Clients, h vip.DHCPRequest) *client {
	x := &client{all: all, hire: h, now: vip.DHCPState{Request: h, State: selecting}}
	if h.Family == vip.IPv4 {
		x.proto = &v4{client: x}
	} else {
		x.proto = &v6{client: x}
	}
	if k := h.LastLease; k.Addr.IsValid() && k.MAC == h.MAC {
		x.now.State = rebooting
		if k.Valid(time.Now()) {
			x.now.Lease = k
		}
	}
	return x
}

// stop ends the client. all.mu is held.
func (x *client) stop() {
	x.stopped = true
	if x.cancel != nil {
		x.cancel()
	}
}

// order hands over what may be asked of a running client. all.mu is held.
func (x *client) order(h vip.DHCPRequest) {
	news := h.Release && !x.release || h.Declined.IsValid() && h.Declined != x.refuse && h.Declined == x.now.Lease.Addr
	x.release = h.Release
	x.refuse = h.Declined
	x.now.Request = h
	if news && x.heed != nil {
		x.heed(errOrder)
	}
}

// tell publishes what has become of the client. change is called with all.mu held.
func (x *client) tell(change func(*vip.DHCPState)) {
	x.all.mu.Lock()
	before := x.now
	change(&x.now)
	news := x.now != before
	x.all.count()
	x.all.mu.Unlock()
	if news {
		x.all.o.Poke()
	}
}

func (x *client) contract() vip.DHCPLease {
	x.all.mu.Lock()
	defer x.all.mu.Unlock()
	return x.now.Lease
}

func (x *client) family() string { return x.hire.Family.String() }

func (x *client) failed(kind string) { x.all.meters.failures.WithLabelValues(x.family(), kind).Inc() }

// lose says that there is no lease any more, and why.
func (x *client) lose(kind, why string) {
	x.failed(kind)
	x.tell(func(h *vip.DHCPState) {
		if h.Lease.Addr.IsValid() {
			x.all.o.Log.Warn("a DHCP lease is lost", "address", h.Lease.Addr, "link", x.hire.Link, "why", why)
		}
		h.State, h.Lease, h.Lost, h.Problem = selecting, vip.DHCPLease{}, true, why
	})
}

// gain says that k is leased.
func (x *client) gain(k vip.DHCPLease) {
	x.tell(func(h *vip.DHCPState) {
		if h.Lease.Addr != k.Addr {
			x.all.o.Log.Info("leased an address", "address", k.Addr, "link", x.hire.Link, "server", k.Server, "expires", until(k))
		}
		h.State, h.Lease, h.Lost, h.Problem = bound, k, false, ""
	})
}

func until(k vip.DHCPLease) string {
	if k.Expires.IsZero() {
		return "never"
	}
	return k.Expires.UTC().Format(time.RFC3339)
}

// run works until ctx ends, or the lease has been given back.
func (x *client) run(ctx context.Context) {
	first := true
	for ctx.Err() == nil {
		work, cancel := context.WithCancelCause(ctx)
		x.all.mu.Lock()
		x.heed = cancel
		release, refuse, k, why := x.release, x.refuse, x.now.Lease, x.now.Request.DeclinedWhy
		x.all.mu.Unlock()
		switch {
		case release:
			cancel(nil)
			x.giveBack(ctx, k)
			return
		case refuse.IsValid() && refuse == k.Addr:
			x.reject(work, k, why)
		case first:
			first = false
			x.remember(work)
		case k.Addr.IsValid():
			x.keep(work)
		default:
			x.acquire(work)
		}
		cancel(nil)
	}
}

func (x *client) giveBack(ctx context.Context, k vip.DHCPLease) {
	if !k.Addr.IsValid() {
		return
	}
	x.tell(func(h *vip.DHCPState) { h.State = releasing })
	if err := x.proto.release(ctx, k); err != nil {
		x.all.o.Log.Warn("a DHCP lease could not be given back; the server keeps it until it expires", "address", k.Addr, "err", err)
		return
	}
	x.all.o.Log.Info("gave a DHCP lease back", "address", k.Addr, "link", x.hire.Link, "server", k.Server)
}

// reject declines k and leaves the servers alone for a while.
func (x *client) reject(ctx context.Context, k vip.DHCPLease, why string) {
	x.lose(declined, fmt.Sprintf("the server %s leases %s, which is declined: %s", k.Server, k.Addr, why))
	if err := x.proto.decline(ctx, k, why); err != nil {
		x.all.o.Log.Debug("DHCP decline", "err", err)
	}
	x.sleep(ctx, jitter(afterDecline, 4))
}

// remember goes on with what is recorded, if anything is.
func (x *client) remember(ctx context.Context) {
	k := x.hire.LastLease
	if !k.Addr.IsValid() || k.MAC != x.hire.MAC {
		return
	}
	got, err := x.proto.reboot(ctx, k)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		x.accept(ctx, got, k.Addr)
	case errors.Is(err, errRefused):
		x.lose(refused, fmt.Sprintf("%s, which was leased before: %v", k.Addr, err))
	case k.Valid(time.Now()):
		// RFC 2131 section 3.2: without an answer the lease may be used to its end.
		x.failed(silent)
		k.Renews, k.Rebinds = time.Now(), time.Now()
		x.tell(func(h *vip.DHCPState) { h.State, h.Lease, h.Problem = rebinding, k, "" })
	default:
		x.failed(silent)
		x.tell(func(h *vip.DHCPState) { h.State, h.Lost = selecting, true })
	}
}

// accept takes k, after a look at whether the address is free unless it is the one
// that this client had before.
func (x *client) accept(ctx context.Context, k vip.DHCPLease, before netip.Addr) {
	if k.Addr != before {
		x.tell(func(h *vip.DHCPState) { h.State = checking })
		if mac, used := x.all.o.InUse(ctx, x.hire.Link, k.Addr); used && mac != x.hire.MAC {
			x.reject(ctx, k, "it is in use by "+mac)
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
	x.gain(k)
}

// acquire looks for a lease until it has one.
func (x *client) acquire(ctx context.Context) {
	began, total, tell, last := time.Now(), 0, outAfter, ""
	ask := x.hire.Requested
	if k := x.hire.LastLease; k.Addr.IsValid() {
		ask = k.Addr
	}
	for try := 0; ctx.Err() == nil; {
		x.tell(func(h *vip.DHCPState) { h.State = selecting })
		k, err := x.proto.find(ctx, try, ask)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			x.accept(ctx, k, netip.Addr{})
			return
		case errors.Is(err, errLocal): // no try at all
			x.complain(err.Error())
			continue
		case errors.Is(err, errSilent):
			x.failed(silent)
		default:
			x.sleep(ctx, jitter(reopen<<min(try, 5), 4)) // it was answered at once
		}
		try++
		total++
		// Each word is an Event: ever more seldom, unless there is something new.
		if text := err.Error(); total >= tell || text != last && !errors.Is(err, errSilent) {
			x.complain(fmt.Sprintf("%s on %s (tried %d times in %v)", text, x.hire.Link, total, time.Since(began).Round(time.Second)))
			last, tell = text, max(2*total, outAfter)
		}
		if a := x.all.o.Attempts; a > 0 && try%a == 0 {
			x.sleep(ctx, jitter(rest, 4))
			try = 0
		}
	}
}

// complain tells what goes wrong, and logs the first of a row.
func (x *client) complain(problem string) {
	x.tell(func(h *vip.DHCPState) {
		if h.Problem == "" {
			x.all.o.Log.Warn("no address from DHCP yet", "problem", problem)
		}
		h.Problem = problem
	})
}

// keep renews the lease until it is lost, or has another address.
func (x *client) keep(ctx context.Context) {
	for ctx.Err() == nil {
		k := x.contract()
		if k.Expires.IsZero() && k.Renews.IsZero() {
			<-ctx.Done()
			return
		}
		x.sleep(ctx, time.Until(k.Renews))
		got, err := x.prolong(ctx, k)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			x.all.meters.renewals.WithLabelValues(x.family()).Inc()
			x.accept(ctx, got, k.Addr)
			if got.Addr != k.Addr {
				return
			}
		case errors.Is(err, errRefused):
			x.lose(refused, fmt.Sprintf("the lease of %s could not be renewed: %v", k.Addr, err))
			return
		default:
			x.lose(expired, fmt.Sprintf("the lease of %s has expired: no server renewed it since %s", k.Addr, k.Renews.UTC().Format(time.RFC3339)))
			return
		}
	}
}

// prolong renews k: RENEWING, then REBINDING, to the end.
func (x *client) prolong(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	phases := []struct {
		state string
		any   bool
		end   time.Time
	}{{renewing, false, k.Rebinds}, {rebinding, true, k.Expires}}
	var err error = errSilent
	for _, p := range phases {
		if !p.end.IsZero() && !time.Now().Before(p.end) {
			continue
		}
		x.tell(func(h *vip.DHCPState) {
			h.State = p.state
			if p.any {
				h.Problem = fmt.Sprintf("%s does not renew the lease of %s; asking any server, until %s", k.Server, k.Addr, until(k))
			}
		})
		phase, cancel := ctx, context.CancelFunc(func() {})
		if !p.end.IsZero() {
			phase, cancel = context.WithDeadlineCause(ctx, p.end, errSilent)
		}
		var got vip.DHCPLease
		for {
			got, err = x.proto.prolong(phase, k, p.any)
			if !errors.Is(err, errLocal) || phase.Err() != nil {
				break
			}
		}
		cancel()
		if err == nil || errors.Is(err, errRefused) || ctx.Err() != nil {
			return got, err
		}
		x.failed(silent)
	}
	return vip.DHCPLease{}, err
}

func (x *client) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// jitter is d, give or take one part of it.
func jitter(d time.Duration, part int64) time.Duration {
	spread := int64(d) / part
	if spread <= 0 {
		return d
	}
	return d - time.Duration(spread) + time.Duration(rand.Int64N(2*spread+1))
}

// An exchange is messages of one kind, until one is answered.
type exchange struct {
	kind  string                                 // what the messages are called
	waits func(n int) time.Duration              // how long to wait for an answer to message n, from 0; 0 is to give up
	say   func(elapsed time.Duration) []byte     // makes a message
	to    *Peer                                  // whom to
	hear  func(b []byte, from *Peer) (over bool) // looks at an answer
	after func(n int) (over bool)                // looks at what was heard after the wait for message n; may be nil
}

// converse runs x to its end: nil once an answer ended it, else errSilent or what
// is wrong with the link.
func (x *client) converse(ctx context.Context, e exchange) error {
	conn, err := x.all.o.Open(x.hire)
	if err != nil {
		return x.unusable(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	began := time.Now()
	buf := make([]byte, 4096)
	for n := 0; ; n++ {
		wait := e.waits(n)
		if wait <= 0 {
			return errSilent
		}
		if err := x.send(conn, e, time.Since(began)); err != nil {
			return x.unusable(ctx, err)
		}
		over, err := x.listen(ctx, conn, buf, time.Now().Add(wait), e.hear)
		if over || err != nil {
			return err
		}
		if e.after != nil && e.after(n) {
			return nil
		}
	}
}

// unusable waits a moment, and says what is wrong with the link.
func (x *client) unusable(ctx context.Context, err error) error {
	x.failed(local)
	x.sleep(ctx, reopen)
	return fmt.Errorf("%w: %s: %w", errLocal, x.hire.Link, err)
}

// send says it, if this node may.
func (x *client) send(conn net.PacketConn, e exchange, elapsed time.Duration) error {
	if t := x.all.o.Tenure(); !t.Confirmed || !t.Holds(time.Now()) {
		return nil
	}
	x.all.meters.sent.WithLabelValues(e.kind).Inc()
	_, err := conn.WriteTo(e.say(elapsed), e.to)
	return err
}

// listen hears until one answer ends it, or the deadline.
func (x *client) listen(ctx context.Context, conn net.PacketConn, buf []byte, deadline time.Time, hear func([]byte, *Peer) bool) (over bool, err error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	for {
		if ctx.Err() != nil {
			return false, errors.Join(errSilent, context.Cause(ctx))
		}
		n, from, err := conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, x.unusable(ctx, err)
		default:
			p, _ := from.(*Peer)
			if p == nil {
				p = &Peer{}
			}
			if hear(buf[:n], p) {
				return true, nil
			}
		}
	}
}

// doubling waits for first, then twice as long each time, but for at most most, and
// gives up after n messages.
func doubling(first, most time.Duration, n int) func(int) time.Duration {
	return func(i int) time.Duration {
		if i >= n {
			return 0
		}
		return jitter(min(first<<min(i, 20), most), 10)
	}
}
