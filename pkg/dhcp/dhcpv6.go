package dhcp

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
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

// obtain sends one Solicit, and a Request to the server of highest preference, of equal ones to that which offers
// preferred, unless one sent a Reply (rapid commit).
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
			if !best.addr.IsValid() || a.preference > best.preference ||
				a.preference == best.preference && a.addr == preferred {
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
	x.offered = best.lease(x.request.MAC, sent)
	x.update(func(s *vip.DHCPState) { s.State = stateRequesting })
	return x.sendRequest(ctx, x.offered, best.server)
}

// sendRequest sends server up to three Requests for k's address.
func (x *protocol6) sendRequest(ctx context.Context, k vip.DHCPLease, server string) (vip.DHCPLease, error) {
	k.Server = server
	return x.ask(ctx, dhcpv6.MessageTypeRequest, k, backoff(solTimeout, reqMaxRT, 3))
}

// confirm asks whether k fits the link, or, once over, any server whether it goes on (RFC 8415 sections 18.2.3 and
// 18.2.5); one that doesn't know it is sent a Request.
func (x *protocol6) confirm(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	if !k.Valid(time.Now()) {
		got, err := x.ask(ctx, dhcpv6.MessageTypeRebind, k, backoff(solTimeout/2, 2*solTimeout, 3))
		if unknown := (noBindingError{}); errors.As(err, &unknown) {
			return x.sendRequest(ctx, k, unknown.server)
		}
		return got, err
	}
	if _, err := x.ask(ctx, dhcpv6.MessageTypeConfirm, k, backoff(solTimeout/2, 4*solTimeout, 4)); err != nil {
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
	kind, end := dhcpv6.MessageTypeRenew, k.Rebinds
	if rebind {
		kind, end = dhcpv6.MessageTypeRebind, k.Expires
	}
	// A short lease would be over before the RFC's first timeout.
	first := max(time.Second, min(renTimeout, time.Until(end)/4))
	for pause := first; ; pause = min(2*pause, renMaxRT) {
		got, err := x.ask(ctx, kind, k, backoff(first, renMaxRT, 1<<30))
		unknown := noBindingError{}
		if !errors.As(err, &unknown) {
			return got, err
		}
		got, err = x.sendRequest(ctx, k, unknown.server)
		if err == nil || errors.Is(err, errRefused) || errors.Is(err, errLink) || ctx.Err() != nil {
			return got, err
		}
		if !mailbox.Sleep(ctx, jitter(pause, 10)) {
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

// ask sends a message about k until a Reply of its server; a Confirm or Rebind until any server's, but what another
// refuses counts in the end, if nobody confirms k. To a Confirm it needs no address. To a Renew or Rebind it is
// errRefused only if it ends the lease; NoBinding is a noBindingError, to a Rebind unless another server renews in
// time; other statuses are ignored.
func (x *protocol6) ask(ctx context.Context, kind dhcpv6.MessageType, k vip.DHCPLease,
	timeout func(int) time.Duration) (vip.DHCPLease, error) {
	var got answer
	unknown, renewal := "", kind == dhcpv6.MessageTypeRenew || kind == dhcpv6.MessageTypeRebind
	server := k.Server
	if kind == dhcpv6.MessageTypeConfirm || kind == dhcpv6.MessageTypeRebind {
		server = ""
	}
	sent, err := x.transact6(ctx, kind, server, k.Addr, transaction{
		timeout: timeout,
		receive: func(a answer, _ *PacketAddr) (bool, error) {
			switch {
			case server != "" && a.server != server:
				return false, nil
			case renewal && a.status == iana.StatusNoBinding:
				unknown = cmp.Or(unknown, a.server)
				return kind == dhcpv6.MessageTypeRenew, nil
			case a.refusal != "" && (kind == dhcpv6.MessageTypeConfirm || endsLease(a)):
				return a.server == k.Server, fmt.Errorf("%w: %s", errRefused, a.refusal)
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

// newMessage makes a message (RFC 8415 appendix B) about addr, if valid, to a server's DUID in hexadecimal; "": all.
func (x *protocol6) newMessage(kind dhcpv6.MessageType, server string, addr netip.Addr) (*dhcpv6.Message, error) {
	id, err := parseDUID(x.request.DUID)
	if err != nil {
		return nil, err
	}
	options := []dhcpv6.Modifier{dhcpv6.WithClientID(id),
		dhcpv6.WithIAID([4]byte(binary.BigEndian.AppendUint32(nil, x.request.IAID)))}
	if server != "" {
		id, err := parseDUID(server)
		if err != nil {
			return nil, err
		}
		options = append(options, dhcpv6.WithServerID(id))
	}
	if addr.IsValid() {
		options = append(options, dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: addr.AsSlice()}))
	}
	if kind == dhcpv6.MessageTypeSolicit {
		options = append(options, dhcpv6.WithRapidCommit)
	}
	switch kind {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		if x.request.Hostname != "" {
			// the S bit: the server is to update the DNS (RFC 4704 section 4.1)
			options = append(options, dhcpv6.WithFQDN(1, x.request.Hostname))
		}
	}
	m, err := dhcpv6.NewMessage(options...)
	if err != nil {
		return nil, err
	}
	m.MessageType = kind
	return m, nil
}

func parseDUID(text string) (dhcpv6.DUID, error) {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return dhcpv6.DUIDFromBytes(b)
}

// parse6 reads a server's answer to request; errNotForUs if it is none, another error if it can't be accepted.
func parse6(b []byte, request *dhcpv6.Message) (a answer, err error) {
	defer recoverDecoder(&err)
	m, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errNotForUs, err)
	}
	a.reply = m.MessageType == dhcpv6.MessageTypeReply
	advertise := m.MessageType == dhcpv6.MessageTypeAdvertise && request.MessageType == dhcpv6.MessageTypeSolicit
	if m.TransactionID != request.TransactionID || !a.reply && !advertise {
		return a, errNotForUs
	}
	// RFC 8415 section 16.10: with this client's identifier, and a server's.
	if id := m.Options.ClientID(); id == nil || !id.Equal(request.Options.ClientID()) {
		return a, errNotForUs
	}
	server := m.Options.ServerID()
	if server == nil {
		return a, errors.New("an answer names no server")
	}
	a.server = hex.EncodeToString(server.ToBytes())
	if len(a.server) > 2*130 { // RFC 8415 section 11.1
		return a, errors.New("an answer names a server with too long an identifier")
	}
	a.preference, a.bits = m.Options.Preference(), 128
	if a.refused(m.Options.Status()) {
		return a, nil
	}
	for _, o := range m.Options.IANA() {
		if o.IaId != request.Options.OneIANA().IaId {
			continue
		}
		if err := a.parseLease6(o, request.Options.OneIANA().Options.OneAddress()); err != nil {
			return a, fmt.Errorf("the server %s %w", a.server, err)
		}
		break
	}
	return a, nil
}

// refused reports whether s is a status other than success, and records it.
func (a *answer) refused(s *dhcpv6.OptStatusCode) bool {
	if s == nil || s.StatusCode == iana.StatusSuccess {
		return false
	}
	a.status = s.StatusCode
	a.refusal = fmt.Sprintf("the server %s says %s %s", a.server, s.StatusCode, printable(s.StatusMessage))
	return true
}

// parseLease6 reads what an IA_NA leases: of acceptable addresses the one asked for (nil: none), else the first.
// Without any a.addr stays invalid, and a.refusal says why, if the server does, else the error, of the first.
func (a *answer) parseLease6(o *dhcpv6.OptIANA, asked *dhcpv6.OptIAAddress) error {
	if a.refused(o.Options.Status()) {
		return nil
	}
	offers := o.Options.Addresses()
	isOther := func(x *dhcpv6.OptIAAddress) bool { return asked != nil && !x.IPv6Addr.Equal(asked.IPv6Addr) }
	// a server with several prefixes sends an address of each, in any order
	if i := slices.IndexFunc(offers, func(x *dhcpv6.OptIAAddress) bool { return !isOther(x) }); i > 0 {
		offers = slices.Concat(offers[i:i+1], offers[:i], offers[i+1:])
	}
	var first error
	for _, offer := range offers {
		first = cmp.Or(first, a.parseOffer6(offer, isOther(offer)))
		if a.addr.IsValid() {
			break
		}
	}
	switch {
	case !a.addr.IsValid() && a.refusal == "":
		return first
	case !a.addr.IsValid() || a.duration == infinite:
		return nil
	case o.T1 > o.T2 && o.T2 > 0:
		return errors.New("wants renewal later than rebinding")
	}
	a.setTimes(o.T1, o.T2, a.duration/5*4) // in this order: nanoseconds overflow
	return nil
}

// parseOffer6 makes an IA_NA's address that of a, or records in a.refusal why the server does not lease it. It is an
// error if unacceptable, or not leased when another was asked for: that is no answer (RFC 8415 section 18.2.10.1).
func (a *answer) parseOffer6(offer *dhcpv6.OptIAAddress, other bool) error {
	addr, ok := netip.AddrFromSlice(offer.IPv6Addr)
	valid, preferred := offer.ValidLifetime, offer.PreferredLifetime
	switch status := offer.Options.Status(); {
	case other && (valid == 0 || status != nil && status.StatusCode != iana.StatusSuccess):
		return fmt.Errorf("does not lease %s, but another address was asked for", offer.IPv6Addr)
	case a.refused(status):
		return nil
	case !ok || addr.Is4In6() || !addr.IsGlobalUnicast():
		return fmt.Errorf("offers %s, which no host can have", offer.IPv6Addr)
	case preferred > valid: // RFC 8415 section 18.2.10.1: to be ignored
		return fmt.Errorf("offers %s, to be preferred for longer than it is valid", addr)
	case valid == 0:
		if a.refusal == "" {
			a.refusal = fmt.Sprintf("the server %s says that the lease of %s is over", a.server, addr)
		}
		return nil
	case valid < minLease:
		return fmt.Errorf("leases %s for %v; %v is the least that is accepted", addr, valid, minLease)
	}
	a.addr, a.duration, a.status, a.refusal = addr, valid, iana.StatusSuccess, ""
	return nil
}
