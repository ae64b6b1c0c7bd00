package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// readsPerSecond is how many packets a transaction reads, for a flood to cost little.
const readsPerSecond = 500

// A transaction is a message that is repeated until answered.
type transaction struct {
	to      *PacketAddr
	timeout func(n int) time.Duration // how long to wait for an answer to transmission n, from 0; 0: give up
	// receive takes an answer. If done, the transaction ends with err; else the answer is ignored, because of err.
	receive func(a answer, from *PacketAddr) (done bool, err error)
	// enough, if not nil, is called after each timeout; true counts as answered.
	enough func() bool

	kind    string                             // the type of the message, for the metric
	message func(elapsed time.Duration) []byte // elapsed: since the first transmission
	parse   func(b []byte) (answer, error)     // errNotForUs: b is no answer to it
}

// transact runs t until it is answered, given up, or ctx ends, and returns when the last message was sent, and nil if
// answered, errNoAnswer, why a first answer was ignored, receive's error, or, after linkPause, errLink.
func (x *client) transact(ctx context.Context, t transaction) (sent time.Time, err error) {
	began := time.Now()
	sent = began
	conn, err := x.o.Open(x.request)
	if err != nil {
		return sent, x.linkError(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	var ignored error
	for n := 0; ; n++ {
		wait := t.timeout(n)
		if wait <= 0 || ctx.Err() != nil {
			return sent, cmp.Or(ignored, errNoAnswer)
		}
		// Without the right to hold VIPs nothing is sent, only listened.
		if tenure := x.o.Tenure(); tenure.Confirmed && tenure.Holds(time.Now()) {
			sent = time.Now()
			x.metrics.sent.WithLabelValues(t.kind).Inc()
			if _, err := conn.WriteTo(t.message(time.Since(began)), t.to); err != nil {
				return sent, x.linkError(ctx, err)
			}
		}
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return sent, x.linkError(ctx, err)
		}
		done, why, err := x.receive(ctx, conn, t)
		ignored = cmp.Or(ignored, why)
		switch {
		case !done && errors.Is(err, errNoAnswer): // ctx has ended
			return sent, cmp.Or(ignored, err)
		case done || err != nil:
			return sent, err
		case t.enough != nil && t.enough():
			return sent, nil
		}
	}
}

// receive reads up to readsPerSecond answers until one ends t, or conn's deadline. ignored is why the first other was.
func (x *client) receive(ctx context.Context, conn net.PacketConn, t transaction) (done bool, ignored, err error) {
	buf, limit := make([]byte, 4096), mailbox.Limit{PerSecond: readsPerSecond}
	for ; ; limit.Read() {
		if ctx.Err() != nil { // its deadline may have been overwritten
			return false, ignored, errNoAnswer
		}
		n, from, err := conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return false, ignored, errNoAnswer
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, ignored, nil
		case errors.Is(err, errNotForUs):
			continue
		case err != nil:
			return false, ignored, x.linkError(ctx, err)
		}
		a, err := t.parse(buf[:n])
		if err == nil {
			if done, err = t.receive(a, from.(*PacketAddr)); done {
				return true, ignored, err
			}
		}
		if err != nil && !errors.Is(err, errNotForUs) {
			x.countFailure(failInvalid)
			ignored = cmp.Or(ignored, err)
		}
	}
}

// linkError returns errLink with err, after linkPause.
func (x *client) linkError(ctx context.Context, err error) error {
	x.countFailure(failLink)
	mailbox.Sleep(ctx, linkPause)
	return fmt.Errorf("%w: %s: %w", errLink, x.request.Link, err)
}

// backoff is the timeouts of count transmissions: first, then doubled up to max.
func backoff(first, max time.Duration, count int) func(int) time.Duration {
	return func(n int) time.Duration {
		if n >= count {
			return 0
		}
		return jitter(min(first<<min(n, 20), max), 10)
	}
}

// once is backoff's timeout of transmission n.
func once(first, max time.Duration, n int) func(int) time.Duration {
	return func(i int) time.Duration { return backoff(first, max, n+1)(n + i) }
}

// jitter is d, give or take up to one part in so many.
func jitter(d time.Duration, part int64) time.Duration {
	spread := int64(d) / part
	if spread <= 0 {
		return d
	}
	return d - time.Duration(spread) + time.Duration(rand.Int64N(2*spread+1))
}

// errNotForUs: the message is for another client, or of another transaction.
var errNotForUs = errors.New("a message for another client")

// infinite is the lease time that never ends (RFC 2131 section 3.3, RFC 8415 section 7.7).
const infinite = 0xffffffff * time.Second

// An answer is a server's message, checked.
type answer struct {
	server   string // its address, or its DUID in hexadecimal
	refusal  string // why it leases nothing, or ""
	addr     netip.Addr
	bits     int
	router   netip.Addr
	duration time.Duration // of the lease; infinite: for ever
	t1, t2   time.Duration

	// DHCPv6 only.
	status     iana.StatusCode // of the refusal
	preference uint8
	reply      bool // a Reply: no Request is needed
}

// lease is what a leases to the client with mac, whose request left at sent.
func (a answer) lease(mac string, sent time.Time) vip.DHCPLease {
	k := vip.DHCPLease{Addr: a.addr, Bits: a.bits, MAC: mac, Server: a.server, Router: a.router}
	if a.addr.IsValid() && a.duration != infinite {
		k.Expires, k.Renews, k.Rebinds = sent.Add(a.duration), sent.Add(a.t1), sent.Add(a.t2)
	}
	return k
}

// setTimes sets t1 and t2 as sent, if in order, else as recommended (RFC 2131 section 4.4.5, RFC 8415 section 21.4).
func (a *answer) setTimes(t1, t2, defaultT2 time.Duration) {
	if a.t2 = t2; a.t2 < time.Second || a.t2 >= a.duration {
		a.t2 = defaultT2
	}
	if a.t1 = t1; a.t1 < time.Second || a.t1 >= a.t2 {
		a.t1 = min(a.duration/2, a.t2/8*5)
	}
}

// recoverDecoder turns a panic into err: the decoder is others', and what it reads anybody's, but no VIP may go for it.
func recoverDecoder(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("an answer can't be decoded: %v", r)
	}
}

// printable is what of s can be printed, at most 100 bytes.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return strings.TrimSpace(vip.Shorten(s, 100))
}
