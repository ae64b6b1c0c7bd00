package dhcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// How long DHCPv4 waits. RFC 2131 section 4.1 begins with 4 s, for networks of its
// time; a Service's user waits for the address.
const (
	first4 = time.Second
	most4  = 64 * time.Second
)

// v4 is DHCPv4.
type v4 struct {
	*client
	server net.HardwareAddr // the neighbour that the last answer came from: the server, or a relay
}

var (
	zero4      = netip.IPv4Unspecified()
	broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	everybody4 = &Peer{Src: zero4, Dst: broadcast4}
)

func (x *v4) find(ctx context.Context, try int, ask netip.Addr) (vip.DHCPLease, error) {
	xid := newXID()
	var offer answer4
	var odd error
	err := x.converse(ctx, exchange{
		kind:  "DHCPDISCOVER",
		waits: once(first4, most4, try),
		to:    everybody4,
		say: func(elapsed time.Duration) []byte {
			return x.message(dhcpv4.MessageTypeDiscover, xid, elapsed, zero4, options4{ask: ask})
		},
		hear: func(b []byte, _ *Peer) bool {
			var err error
			if offer, err = x.read(b, xid, dhcpv4.MessageTypeOffer); err != nil {
				odd = x.odd(odd, err)
			}
			return err == nil
		},
	})
	if err != nil {
		if errors.Is(err, errSilent) && odd != nil {
			return vip.DHCPLease{}, odd
		}
		return vip.DHCPLease{}, err
	}
	x.tell(func(h *vip.DHCPState) { h.State = requesting })
	return x.request(ctx, request4{
		xid: xid, to: everybody4, from: zero4, waits: doubling(first4, 4*first4, 3), by: offer.server,
		options: options4{ask: offer.addr, server: offer.server},
	})
}

// reboot asks for k without naming a server (RFC 2131 section 4.3.2, INIT-REBOOT).
func (x *v4) reboot(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	return x.request(ctx, request4{xid: newXID(), to: everybody4, from: zero4, waits: doubling(first4/2, 2*first4, 3), options: options4{ask: k.Addr}})
}

func (x *v4) prolong(ctx context.Context, k vip.DHCPLease, any bool) (vip.DHCPLease, error) {
	to, end := &Peer{Src: k.Addr, Dst: broadcast4}, k.Expires
	server, err := netip.ParseAddr(k.Server)
	if any = any || err != nil; !any {
		to, end = &Peer{Src: k.Addr, Dst: server, MAC: x.server}, k.Rebinds
	}
	// Half of the time that is left (RFC 2131 section 4.4.5), which says 60 s at
	// least: leases that are shorter than that would be tried once.
	waits := func(int) time.Duration { return jitter(min(max(time.Until(end)/2, time.Second), time.Hour), 10) }
	r := request4{xid: newXID(), to: to, from: k.Addr, waits: waits}
	if !any {
		r.by = to.Dst // asked alone, it answers alone
	}
	return x.request(ctx, r)
}

// A request4 is a DHCPREQUEST in one of its four forms.
type request4 struct {
	xid     dhcpv4.TransactionID
	to      *Peer
	from    netip.Addr // ciaddr
	waits   func(int) time.Duration
	by      netip.Addr // the server whose answer counts; zero: any
	options options4
}

func (x *v4) request(ctx context.Context, r request4) (vip.DHCPLease, error) {
	var got answer4
	var odd, refusal error
	sent := time.Now()
	err := x.converse(ctx, exchange{
		kind: "DHCPREQUEST", waits: r.waits, to: r.to,
		say: func(elapsed time.Duration) []byte {
			sent = time.Now()
			return x.message(dhcpv4.MessageTypeRequest, r.xid, elapsed, r.from, r.options)
		},
		hear: func(b []byte, from *Peer) bool {
			a, err := x.read(b, r.xid, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
			switch {
			case err != nil:
				odd = x.odd(odd, err)
				return false
			case r.by.IsValid() && a.server != r.by:
				return false
			case a.nak:
				refusal = fmt.Errorf("%w by %s (DHCPNAK) %s", errRefused, a.server, printable(a.text))
				return true
			}
			got, x.server = a, from.MAC
			return true
		},
	})
	switch {
	case refusal != nil:
		return vip.DHCPLease{}, refusal
	case errors.Is(err, errSilent) && odd != nil && ctx.Err() == nil:
		return vip.DHCPLease{}, odd
	case err != nil:
		return vip.DHCPLease{}, err
	}
	return got.contract(x.hire.MAC, sent), nil
}

// odd keeps the first answer that can't be believed, for the message; those that are
// not for this client are not worth one.
func (x *client) odd(before, err error) error {
	if errors.Is(err, errOther) {
		return before
	}
	x.failed(invalid)
	if before != nil {
		return before
	}
	return err
}

func (x *v4) decline(ctx context.Context, k vip.DHCPLease, why string) error {
	server, err := netip.ParseAddr(k.Server)
	if err != nil {
		return err
	}
	return x.tellServer(ctx, dhcpv4.MessageTypeDecline, everybody4, zero4, options4{ask: k.Addr, server: server, text: why})
}

func (x *v4) release(ctx context.Context, k vip.DHCPLease) error {
	server, err := netip.ParseAddr(k.Server)
	if err != nil {
		return err
	}
	return x.tellServer(ctx, dhcpv4.MessageTypeRelease, &Peer{Src: k.Addr, Dst: server, MAC: x.server}, k.Addr, options4{server: server})
}

// tellServer sends what is not answered.
func (x *v4) tellServer(ctx context.Context, kind dhcpv4.MessageType, to *Peer, from netip.Addr, o options4) error {
	err := x.converse(ctx, exchange{
		kind: "DHCP" + kind.String(), to: to,
		waits: func(n int) time.Duration { return time.Duration(1-n) * time.Millisecond },
		say:   func(time.Duration) []byte { return x.message(kind, newXID(), 0, from, o) },
		hear:  func([]byte, *Peer) bool { return false },
	})
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

// once waits for try number n, once.
func once(first, most time.Duration, n int) func(int) time.Duration {
	all := doubling(first, most, n+1)
	return func(i int) time.Duration {
		if i > 0 {
			return 0
		}
		return all(n)
	}
}

func newXID() (id dhcpv4.TransactionID) {
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return id
}

// options4 are the options that differ from message to message.
type options4 struct {
	ask    netip.Addr // option 50
	server netip.Addr // option 54
	text   string     // option 56
}

// message makes a message (RFC 2131 table 5).
func (x *v4) message(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, elapsed time.Duration, from netip.Addr, o options4) []byte {
	mac, _ := net.ParseMAC(x.hire.MAC) // checked where the Hire was made; the link has it anyway
	m, err := dhcpv4.New(dhcpv4.WithTransactionID(xid), dhcpv4.WithHwAddr(mac), dhcpv4.WithClientIP(from.AsSlice()),
		dhcpv4.WithMessageType(kind), dhcpv4.WithBroadcast(x.hire.Broadcast && !from.IsGlobalUnicast()))
	if err != nil {
		return nil
	}
	m.NumSeconds = uint16(min(elapsed/time.Second, 0xffff))
	m.UpdateOption(dhcpv4.OptClientIdentifier(clientID(mac)))
	if o.ask.IsValid() {
		m.UpdateOption(dhcpv4.OptRequestedIPAddress(o.ask.AsSlice()))
	}
	if o.server.IsValid() {
		m.UpdateOption(dhcpv4.OptServerIdentifier(o.server.AsSlice()))
	}
	if o.text != "" {
		m.UpdateOption(dhcpv4.OptMessage(o.text[:min(len(o.text), 200)]))
	}
	if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
		if x.hire.Hostname != "" {
			m.UpdateOption(dhcpv4.OptHostName(x.hire.Hostname))
		}
		m.UpdateOption(dhcpv4.OptParameterRequestList(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter,
			dhcpv4.OptionIPAddressLeaseTime, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue))
		m.UpdateOption(dhcpv4.OptMaxMessageSize(1500))
	}
	return m.ToBytes()
}

// clientID is the client identifier: the hardware type and address (RFC 2132 section 9.14).
func clientID(mac net.HardwareAddr) []byte { return append([]byte{1}, mac...) }
