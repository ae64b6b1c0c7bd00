package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// Timeouts of DHCPv6, named as in RFC 8415 section 7.6, some shorter: a Service's user waits.
const (
	solTimeout = time.Second // also REQ_TIMEOUT, CNF_TIMEOUT, REL_TIMEOUT
	solMaxRT   = 120 * time.Second
	reqMaxRT   = 30 * time.Second
	renTimeout = 10 * time.Second // also REB_TIMEOUT
	renMaxRT   = 600 * time.Second
)

type protocol6 struct{ *client }

// allServers6 is where all servers and relays listen (RFC 8415 section 7.1).
var allServers6 = &PacketAddr{Dst: netip.MustParseAddr("ff02::1:2")}

// obtain sends one Solicit, and a Request to the server of highest preference unless that sent a Reply (rapid commit).
func (x *protocol6) obtain(ctx context.Context, attempt int, preferred netip.Addr) (vip.DHCPLease, error) {
	var best answer
	sent, err := x.transact6(ctx, dhcpv6.MessageTypeSolicit, "", preferred, transaction{
		timeout: once(solTimeout, solMaxRT, attempt),
		receive: func(a answer, _ *PacketAddr) (bool, error) {
			switch {
			case a.refusal != "":
				return false, errors.New(a.refusal)
			case !a.addr.IsValid(): // RFC 8415 section 18.2.9
				return false, errNoAddress(a)
			case a.reply:
				best = a
				return true, nil
			}
			if !best.addr.IsValid() || a.preference > best.preference {
				best = a
			}
			// In the first attempt all answers in time count (RFC 8415 section 18.2.1).
			return attempt > 0 || best.preference == 255, nil
		},
		enough: func() bool { return best.addr.IsValid() },
	})
	switch {
	case err != nil:
		return vip.DHCPLease{}, err
	case best.reply:
		return best.lease(x.request.MAC, sent), nil
	}
	x.update(func(s *vip.DHCPState) { s.State = stateRequesting })
	return x.sendRequest(ctx, best.server, best.addr)
}

// sendRequest sends a server up to three Requests for addr.
func (x *protocol6) sendRequest(ctx context.Context, server string, addr netip.Addr) (vip.DHCPLease, error) {
	return x.ask(ctx, dhcpv6.MessageTypeRequest, server, addr, backoff(solTimeout, reqMaxRT, 3))
}

// confirm asks whether k fits the link, or, once over, any server whether it goes on (RFC 8415 sections 18.2.3 and
// 18.2.5); one that doesn't know it is sent a Request.
func (x *protocol6) confirm(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	if !k.Valid(time.Now()) {
		got, err := x.ask(ctx, dhcpv6.MessageTypeRebind, "", k.Addr, backoff(solTimeout/2, 2*solTimeout, 3))
		if unknown := (noBindingError{}); errors.As(err, &unknown) {
			return x.sendRequest(ctx, unknown.server, k.Addr)
		}
		return got, err
	}
	if _, err := x.ask(ctx, dhcpv6.MessageTypeConfirm, "", k.Addr, backoff(solTimeout/2, 4*solTimeout, 4)); err != nil {
		return vip.DHCPLease{}, err
	}
	k.Renews, k.Rebinds = time.Time{}, time.Time{}
	if !k.Expires.IsZero() { // T1 and T2 are not recorded
		k.Renews, k.Rebinds = time.Now(), time.Now().Add(time.Until(k.Expires)/2)
	}
	return k, nil
}

// renew asks as the protocol says. A server that doesn't know k is sent a Request (RFC 8415 section 18.2.10.1); without
// success k goes on, and renew begins again after a pause.
func (x *protocol6) renew(ctx context.Context, k vip.DHCPLease, rebind bool) (vip.DHCPLease, error) {
	kind, server, end := dhcpv6.MessageTypeRenew, k.Server, k.Rebinds
	if rebind {
		kind, server, end = dhcpv6.MessageTypeRebind, "", k.Expires
	}
	// A short lease would be over before the RFC's first timeout.
	first := max(time.Second, min(renTimeout, time.Until(end)/4))
	for pause := first; ; pause = min(2*pause, renMaxRT) {
		got, err := x.ask(ctx, kind, server, k.Addr, backoff(first, renMaxRT, 1<<30))
		unknown := noBindingError{}
		if !errors.As(err, &unknown) {
			return got, err
		}
		got, err = x.sendRequest(ctx, unknown.server, k.Addr)
		if err == nil || errors.Is(err, errRefused) || errors.Is(err, errLink) || ctx.Err() != nil {
			return got, err
		}
		if sleep(ctx, jitter(pause, 10)); ctx.Err() != nil {
			return got, err
		}
	}
}

// A noBindingError is that a server, by its DUID, doesn't know a lease to renew.
type noBindingError struct{ server string }

func (e noBindingError) Error() string {
	return fmt.Sprintf("the server %s knows nothing of the lease", e.server)
}

// errNoAddress is why a, without lease and reason, is ignored.
func errNoAddress(a answer) error {
	return fmt.Errorf("the server %s answers without an address", a.server)
}

// ask sends a message about addr until a Reply of server, "": of any. To a Confirm it needs no address. To a Renew or
// Rebind it is errRefused only if it ends the lease; NoBinding is a noBindingError, to a Rebind unless another server
// renews in time; other statuses are ignored.
func (x *protocol6) ask(ctx context.Context, kind dhcpv6.MessageType, server string, addr netip.Addr,
	timeout func(int) time.Duration) (vip.DHCPLease, error) {
	var got answer
	unknown, renewal := "", kind == dhcpv6.MessageTypeRenew || kind == dhcpv6.MessageTypeRebind
	sent, err := x.transact6(ctx, kind, server, addr, transaction{
		timeout: timeout,
		receive: func(a answer, _ *PacketAddr) (bool, error) {
			switch {
			case server != "" && a.server != server:
				return false, nil
			case renewal && a.status == iana.StatusNoBinding:
				unknown = cmp.Or(unknown, a.server)
				return kind == dhcpv6.MessageTypeRenew, nil
			case a.refusal != "" && (kind == dhcpv6.MessageTypeConfirm || endsLease(a)):
				return true, fmt.Errorf("%w: %s", errRefused, a.refusal)
			case a.refusal != "":
				return !renewal, errors.New(a.refusal)
			case kind != dhcpv6.MessageTypeConfirm && !a.addr.IsValid():
				return false, errNoAddress(a)
			}
			got = a
			return true, nil
		},
		enough: func() bool { return unknown != "" },
	})
	switch {
	case err != nil:
		return vip.DHCPLease{}, err
	case got.server == "":
		return vip.DHCPLease{}, noBindingError{unknown}
	}
	return got.lease(x.request.MAC, sent), nil
}

// endsLease reports whether the refusal a ends a lease before its lifetime: the address does not fit the link, or its
// lifetime is 0. Other statuses only don't renew it.
func endsLease(a answer) bool {
	return a.status == iana.StatusNotOnLink || a.status == iana.StatusSuccess
}

func (x *protocol6) decline(ctx context.Context, k vip.DHCPLease, _ string) error {
	return x.give(ctx, dhcpv6.MessageTypeDecline, k)
}

func (x *protocol6) release(ctx context.Context, k vip.DHCPLease) error {
	return x.give(ctx, dhcpv6.MessageTypeRelease, k)
}

// give sends k's server a Decline or a Release until any Reply.
func (x *protocol6) give(ctx context.Context, kind dhcpv6.MessageType, k vip.DHCPLease) error {
	_, err := x.transact6(ctx, kind, k.Server, k.Addr, transaction{
		timeout: backoff(solTimeout, 4*solTimeout, 3),
		receive: func(answer, *PacketAddr) (bool, error) { return true, nil },
	})
	return err
}

// transact6 runs t for a message about addr, if valid, to the server with a DUID in hexadecimal; "": to all.
func (x *protocol6) transact6(ctx context.Context, kind dhcpv6.MessageType, server string, addr netip.Addr,
	t transaction) (sent time.Time, err error) {
	m, err := x.newMessage(kind, server, addr)
	if err != nil {
		return time.Time{}, err
	}
	t.to, t.kind = allServers6, kind.String()
	t.message = func(elapsed time.Duration) []byte {
		m.UpdateOption(dhcpv6.OptElapsedTime(min(elapsed, 600*time.Second))) // RFC 8415 section 21.9
		return m.ToBytes()
	}
	t.parse = func(b []byte) (answer, error) { return parse6(b, m) }
	return x.transact(ctx, t)
}
