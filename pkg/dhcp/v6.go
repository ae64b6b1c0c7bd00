package dhcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// How long DHCPv6 waits (RFC 8415 section 7.6), in seconds of time-out and most.
const (
	first6        = time.Second // SOL_TIMEOUT, REQ_TIMEOUT, CNF_TIMEOUT, REL_TIMEOUT
	mostSolicit6  = 120 * time.Second
	mostRequest6  = 30 * time.Second
	firstProlong6 = 10 * time.Second // REN_TIMEOUT, REB_TIMEOUT
	mostProlong6  = 600 * time.Second
)

// v6 is the non-temporary addresses of DHCPv6.
type v6 struct{ *client }

// all6 is where all servers and relays listen (RFC 8415 section 7.1).
var all6 = &Peer{Dst: netip.MustParseAddr("ff02::1:2")}

func (x *v6) find(ctx context.Context, try int, ask netip.Addr) (vip.DHCPLease, error) {
	xid := newXID6()
	var best answer6
	var odd error
	sent := time.Now()
	err := x.converse(ctx, exchange{
		kind: "SOLICIT", to: all6,
		waits: once(first6, mostSolicit6, try),
		say: func(elapsed time.Duration) []byte {
			sent = time.Now()
			return x.message(dhcpv6.MessageTypeSolicit, xid, elapsed, options6{addr: ask, rapid: true})
		},
		hear: func(b []byte, _ *Peer) bool {
			a, err := x.read(b, xid, dhcpv6.MessageTypeAdvertise, dhcpv6.MessageTypeReply)
			switch {
			case err == nil && a.refusal != "":
				err = errors.New(a.refusal)
				fallthrough
			case err != nil:
				odd = x.odd(odd, err)
				return false
			case a.committed:
				best = a
				return true
			}
			if !best.addr.IsValid() || a.preference > best.preference {
				best = a
			}
			// All that answer within the first time-out are heard (RFC 8415 section 18.2.1).
			return try > 0 || best.preference == 255
		},
		after: func(int) bool { return best.addr.IsValid() },
	})
	switch {
	case errors.Is(err, errSilent) && odd != nil && ctx.Err() == nil:
		return vip.DHCPLease{}, odd
	case err != nil:
		return vip.DHCPLease{}, err
	case best.committed:
		return best.contract(x.hire.MAC, sent), nil
	}
	x.tell(func(h *vip.DHCPState) { h.State = requesting })
	return x.request(ctx, best.server, best.addr)
}

func (x *v6) request(ctx context.Context, server string, addr netip.Addr) (vip.DHCPLease, error) {
	return x.ask(ctx, dhcpv6.MessageTypeRequest, options6{addr: addr, server: server}, doubling(first6, mostRequest6, 3))
}

// reboot asks whether k still fits the link, or, once it is over, any server whether
// it goes on (RFC 8415 sections 18.2.3 and 18.2.5).
func (x *v6) reboot(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	if !k.Valid(time.Now()) {
		return x.ask(ctx, dhcpv6.MessageTypeRebind, options6{addr: k.Addr}, doubling(first6/2, 2*first6, 3))
	}
	if _, err := x.ask(ctx, dhcpv6.MessageTypeConfirm, options6{addr: k.Addr}, doubling(first6/2, 4*first6, 4)); err != nil {
		return vip.DHCPLease{}, err
	}
	k.Renews, k.Rebinds = time.Now(), time.Now().Add(time.Until(k.Expires)/2) // what was agreed is not recorded
	if k.Expires.IsZero() {
		k.Renews, k.Rebinds = time.Time{}, time.Time{}
	}
	return k, nil
}

func (x *v6) prolong(ctx context.Context, k vip.DHCPLease, any bool) (vip.DHCPLease, error) {
	kind, o, end := dhcpv6.MessageTypeRenew, options6{addr: k.Addr, server: k.Server}, k.Rebinds
	if any {
		kind, o.server, end = dhcpv6.MessageTypeRebind, "", k.Expires
	}
	// A short lease would be over before the RFC's first time-out.
	first := max(time.Second, min(firstProlong6, time.Until(end)/4))
	got, err := x.ask(ctx, kind, o, doubling(first, mostProlong6, 1<<30))
	if errors.Is(err, errNoBinding) && !any {
		return x.request(ctx, k.Server, k.Addr) // the server has forgotten it (RFC 8415 section 18.2.10.1)
	}
	return got, err
}

var errNoBinding = fmt.Errorf("%w: the server knows nothing of it", errRefused)

// ask runs one exchange that ends with a Reply.
func (x *v6) ask(ctx context.Context, kind dhcpv6.MessageType, o options6, waits func(int) time.Duration) (vip.DHCPLease, error) {
	xid := newXID6()
	var got answer6
	var odd error
	sent := time.Now()
	err := x.converse(ctx, exchange{
		kind: kind.String(), to: all6, waits: waits,
		say: func(elapsed time.Duration) []byte {
			sent = time.Now()
			return x.message(kind, xid, elapsed, o)
		},
		hear: func(b []byte, _ *Peer) bool {
			a, err := x.read(b, xid, dhcpv6.MessageTypeReply)
			switch {
			case err != nil:
			case o.server != "" && a.server != o.server:
				return false
			case a.refusal == "" && kind != dhcpv6.MessageTypeConfirm && !a.addr.IsValid():
				err = fmt.Errorf("the server %s answers without an address", a.server)
			}
			if err != nil {
				odd = x.odd(odd, err)
				return false
			}
			got = a
			return true
		},
	})
	switch {
	case errors.Is(err, errSilent) && odd != nil && ctx.Err() == nil:
		return vip.DHCPLease{}, odd
	case err != nil:
		return vip.DHCPLease{}, err
	case got.status == iana.StatusNoBinding:
		return vip.DHCPLease{}, errNoBinding
	case got.refusal != "":
		return vip.DHCPLease{}, fmt.Errorf("%w: %s", errRefused, got.refusal)
	}
	return got.contract(x.hire.MAC, sent), nil
}

func (x *v6) decline(ctx context.Context, k vip.DHCPLease, _ string) error {
	return x.done(ctx, dhcpv6.MessageTypeDecline, k)
}

func (x *v6) release(ctx context.Context, k vip.DHCPLease) error {
	return x.done(ctx, dhcpv6.MessageTypeRelease, k)
}

// done tells k's server that it is over. Any answer will do.
func (x *v6) done(ctx context.Context, kind dhcpv6.MessageType, k vip.DHCPLease) error {
	xid := newXID6()
	return x.converse(ctx, exchange{
		kind: kind.String(), to: all6, waits: doubling(first6, 4*first6, 3),
		say: func(elapsed time.Duration) []byte {
			return x.message(kind, xid, elapsed, options6{addr: k.Addr, server: k.Server})
		},
		hear: func(b []byte, _ *Peer) bool {
			_, err := x.read(b, xid, dhcpv6.MessageTypeReply)
			return err == nil
		},
	})
}

func newXID6() (id dhcpv6.TransactionID) {
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return id
}

// options6 are the options that differ from message to message.
type options6 struct {
	addr   netip.Addr // within the IA_NA
	server string     // the server's DUID in hexadecimal
	rapid  bool
}

// message makes a message (RFC 8415 appendix B).
func (x *v6) message(kind dhcpv6.MessageType, xid dhcpv6.TransactionID, elapsed time.Duration, o options6) []byte {
	m := &dhcpv6.Message{MessageType: kind, TransactionID: xid}
	if duid, err := duid(x.hire.DUID); err == nil {
		m.AddOption(dhcpv6.OptClientID(duid))
	}
	if o.server != "" {
		if server, err := duid(o.server); err == nil {
			m.AddOption(dhcpv6.OptServerID(server))
		}
	}
	m.AddOption(dhcpv6.OptElapsedTime(min(elapsed, 600*time.Second)))
	ia := &dhcpv6.OptIANA{IaId: iaid(x.hire.IAID)}
	if o.addr.IsValid() {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: o.addr.AsSlice()})
	}
	m.AddOption(ia)
	if o.rapid {
		m.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionRapidCommit})
	}
	switch kind {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		if x.hire.Hostname != "" {
			dhcpv6.WithFQDN(1, x.hire.Hostname)(m) // the S bit: the server is to update the DNS (RFC 4704 section 4.1)
		}
	}
	return m.ToBytes()
}

func iaid(n uint32) (b [4]byte) {
	binary.BigEndian.PutUint32(b[:], n)
	return b
}

// duid reads a DUID from hexadecimal.
func duid(text string) (dhcpv6.DUID, error) {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return dhcpv6.DUIDFromBytes(b)
}
