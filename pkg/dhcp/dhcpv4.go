package dhcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/heraldvip/herald/pkg/vip"
)

// Timeouts of DHCPv4. RFC 2131 section 4.1 begins with 4 s, but a Service's user waits.
const (
	firstTimeout4 = time.Second
	maxTimeout4   = 64 * time.Second
)

// protocol4 is DHCPv4 (RFC 2131).
type protocol4 struct {
	*client
	serverMAC net.HardwareAddr // the neighbour that the last answer came from: the server, or a relay
}

var (
	unspecified4 = netip.IPv4Unspecified()
	broadcast4   = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allServers4  = &PacketAddr{Src: unspecified4, Dst: broadcast4}
)

// obtain sends one DHCPDISCOVER, and a DHCPREQUEST for the first offer; one of preferred has until the first timeout.
func (x *protocol4) obtain(ctx context.Context, attempt int, preferred netip.Addr) (vip.DHCPLease, error) {
	var xid dhcpv4.TransactionID // the same for both (RFC 2131 section 4.4.1)
	_, _ = rand.Read(xid[:])     // never fails (crypto/rand)
	var offer answer
	sent, err := x.transact4(ctx, dhcpv4.MessageTypeDiscover, unspecified4,
		withAddrs(preferred, netip.Addr{}, dhcpv4.WithTransactionID(xid)), transaction{
			to: allServers4, timeout: once(firstTimeout4, maxTimeout4, attempt),
			receive: func(a answer, _ *PacketAddr) (bool, error) {
				wanted := a.addr == preferred
				if wanted || !offer.addr.IsValid() {
					offer = a
				}
				return wanted || attempt > 0 || !preferred.IsValid(), nil
			},
			enough: func() bool { return offer.addr.IsValid() },
		})
	if err != nil {
		return vip.DHCPLease{}, err
	}
	x.offered = offer.lease(x.request.MAC, sent)
	x.update(func(s *vip.DHCPState) { s.State = stateRequesting })
	return x.sendRequest(ctx, transaction{to: allServers4, timeout: backoff(firstTimeout4, 4*firstTimeout4, 3)},
		offer.server, false,
		withAddrs(offer.addr, netip.MustParseAddr(offer.server), dhcpv4.WithTransactionID(xid))...)
}

// confirm asks for k without naming a server (RFC 2131 section 4.3.2, INIT-REBOOT).
func (x *protocol4) confirm(ctx context.Context, k vip.DHCPLease) (vip.DHCPLease, error) {
	return x.sendRequest(ctx, transaction{to: allServers4, timeout: backoff(firstTimeout4/2, 2*firstTimeout4, 3)},
		k.Server, true, withAddrs(k.Addr, netip.Addr{})...)
}

func (x *protocol4) renew(ctx context.Context, k vip.DHCPLease, rebind bool) (vip.DHCPLease, error) {
	t, others, end := transaction{to: &PacketAddr{Src: k.Addr, Dst: broadcast4}}, true, k.Expires
	if server, err := server4(k); err == nil && !rebind {
		t.to, others, end = &PacketAddr{Src: k.Addr, Dst: server, MAC: x.serverMAC}, false, k.Rebinds
	}
	// Half of what is left (RFC 2131 section 4.4.5), without its least of 60 s: shorter leases would be tried once.
	t.timeout = func(int) time.Duration { return jitter(min(max(time.Until(end)/2, time.Second), time.Hour), 10) }
	if end.IsZero() { // a lease for ever, which nobody has confirmed since the process started
		t.timeout = backoff(firstTimeout4, maxTimeout4, 1<<30)
	}
	return x.sendRequest(ctx, t, k.Server, others)
}

// sendRequest sends t as a DHCPREQUEST, with its source as ciaddr, until server answers, or, if others may, one leases.
// What another refuses counts in the end, if nobody leases: it may replace the server, or be there by mistake.
func (x *protocol4) sendRequest(ctx context.Context, t transaction, server string, others bool,
	options ...dhcpv4.Modifier) (vip.DHCPLease, error) {
	var got answer
	t.receive = func(a answer, by *PacketAddr) (bool, error) {
		switch {
		case a.server != server && !others:
			return false, nil
		case a.refusal != "":
			return a.server == server, fmt.Errorf("%w by %s: %s", errRefused, a.server, a.refusal)
		}
		got, x.serverMAC = a, by.MAC
		return true, nil
	}
	sent, err := x.transact4(ctx, dhcpv4.MessageTypeRequest, t.to.Src, options, t)
	if err != nil {
		return vip.DHCPLease{}, err
	}
	return got.lease(x.request.MAC, sent), nil
}

func (x *protocol4) decline(ctx context.Context, k vip.DHCPLease, why string) error {
	server, err := server4(k)
	if err != nil {
		return err
	}
	message := dhcpv4.WithOption(dhcpv4.OptMessage(why[:min(len(why), 200)]))
	return x.sendOnce(ctx, dhcpv4.MessageTypeDecline, allServers4, withAddrs(k.Addr, server, message))
}

func (x *protocol4) release(ctx context.Context, k vip.DHCPLease) error {
	server, err := server4(k)
	if err != nil {
		return err
	}
	return x.sendOnce(ctx, dhcpv4.MessageTypeRelease, &PacketAddr{Src: k.Addr, Dst: server, MAC: x.serverMAC},
		withAddrs(netip.Addr{}, server))
}

// server4 is the server that k was leased by; that of a recorded lease, written on the Service, may be anything.
func server4(k vip.DHCPLease) (netip.Addr, error) {
	server, err := netip.ParseAddr(k.Server)
	if err == nil && !usable4(server) {
		err = fmt.Errorf("%s is no address of a DHCPv4 server", server)
	}
	return server, err
}

func (x *protocol4) sendOnce(ctx context.Context, kind dhcpv4.MessageType, to *PacketAddr,
	options []dhcpv4.Modifier) error {
	_, err := x.transact4(ctx, kind, to.Src, options, transaction{
		to:      to,
		timeout: func(n int) time.Duration { return time.Duration(1-n) * time.Millisecond },
	})
	if errors.Is(err, errNoAnswer) {
		return nil
	}
	return err
}

func (x *protocol4) transact4(ctx context.Context, kind dhcpv4.MessageType, ciaddr netip.Addr,
	options []dhcpv4.Modifier, t transaction) (sent time.Time, err error) {
	m, err := x.newMessage(kind, ciaddr, options)
	if err != nil {
		return time.Time{}, err
	}
	t.kind = "DHCP" + kind.String()
	t.message = func(elapsed time.Duration) []byte {
		m.NumSeconds = uint16(min(elapsed/time.Second, 0xffff))
		return m.ToBytes()
	}
	t.parse = func(b []byte) (answer, error) { return parse4(b, m) }
	return x.transact(ctx, t)
}

// newMessage makes a message with options and those of its type and client (RFC 2131 table 5). ciaddr is 0.0.0.0 unless
// the client may answer ARP for it.
func (x *protocol4) newMessage(kind dhcpv4.MessageType, ciaddr netip.Addr, options []dhcpv4.Modifier) (*dhcpv4.DHCPv4,
	error) {
	mac, err := net.ParseMAC(x.request.MAC)
	if err != nil {
		return nil, err
	}
	options = append(options, dhcpv4.WithHwAddr(mac), dhcpv4.WithClientIP(ciaddr.AsSlice()), dhcpv4.WithMessageType(kind),
		dhcpv4.WithBroadcast(x.request.Broadcast && !ciaddr.IsGlobalUnicast()),
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(clientID(mac, x.request.Hostname))))
	if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
		if x.request.Hostname != "" {
			options = append(options, dhcpv4.WithOption(dhcpv4.OptHostName(x.request.Hostname)))
		}
		options = append(options, dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter,
			dhcpv4.OptionIPAddressLeaseTime, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue),
			dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)))
	}
	return dhcpv4.New(options...)
}

// withAddrs adds, if valid, the requested IP address and the server identifier.
func withAddrs(requested, server netip.Addr, more ...dhcpv4.Modifier) []dhcpv4.Modifier {
	if requested.IsValid() {
		more = append(more, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(requested.AsSlice())))
	}
	if server.IsValid() {
		more = append(more, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server.AsSlice())))
	}
	return more
}

// clientID is the client identifier (RFC 2132 section 9.14): the host name if any, as kube-vip sends it, to keep its
// reservations and leases; else the hardware type and address.
func clientID(mac net.HardwareAddr, hostname string) []byte {
	if hostname != "" {
		return []byte(hostname)
	}
	return append([]byte{1}, mac...)
}

var answers4 = map[dhcpv4.MessageType][]dhcpv4.MessageType{
	dhcpv4.MessageTypeDiscover: {dhcpv4.MessageTypeOffer},
	dhcpv4.MessageTypeRequest:  {dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak},
}

// parse4 reads a server's answer to request; errNotForUs if it is none, another error if it can't be accepted.
func parse4(b []byte, request *dhcpv4.DHCPv4) (a answer, err error) {
	defer recoverDecoder(&err)
	m, err := dhcpv4.FromBytes(b)
	switch {
	case err != nil:
		return a, fmt.Errorf("%w: %w", errNotForUs, err) // whose it is can't be told
	case m.OpCode != dhcpv4.OpcodeBootReply, m.TransactionID != request.TransactionID,
		!bytes.Equal(m.ClientHWAddr, request.ClientHWAddr),
		!slices.Contains(answers4[request.MessageType()], m.MessageType()):
		return a, errNotForUs
	}
	if id := m.GetOneOption(dhcpv4.OptionClientIdentifier); id != nil &&
		!bytes.Equal(id, request.GetOneOption(dhcpv4.OptionClientIdentifier)) {
		return a, errNotForUs // RFC 6842
	}
	server := addr4(m.ServerIdentifier())
	if !usable4(server) {
		return a, errors.New("an answer names no server that could be")
	}
	a.server = server.String()
	if m.MessageType() == dhcpv4.MessageTypeNak {
		a.refusal = "DHCPNAK " + printable(m.Message())
		return a, nil
	}
	if err := a.parseLease4(m, server); err != nil {
		return a, fmt.Errorf("the server %s %w", server, err)
	}
	return a, nil
}

// parseLease4 reads what m, an offer or acknowledgement, leases.
func (a *answer) parseLease4(m *dhcpv4.DHCPv4, server netip.Addr) error {
	if a.addr = addr4(m.YourIPAddr); !usable4(a.addr) {
		return fmt.Errorf("offers %s, which no host can have", m.YourIPAddr)
	}
	a.bits = 32
	if mask := m.GetOneOption(dhcpv4.OptionSubnetMask); len(mask) != 4 && mask != nil {
		return fmt.Errorf("offers %s with a subnet mask of %d bytes", a.addr, len(mask))
	} else if mask != nil {
		n, size := net.IPMask(mask).Size()
		if size == 0 || n == 0 {
			return fmt.Errorf("offers %s with the subnet mask %s, which is none", a.addr, net.IP(mask))
		}
		a.bits = n
	}
	if p := netip.PrefixFrom(a.addr, a.bits); a.bits < 31 && (p.Masked().Addr() == a.addr || vip.LastAddr(p) == a.addr) {
		return fmt.Errorf("offers %s, which is the address of the network %s itself, or its broadcast address", a.addr,
			p.Masked())
	}
	if routers := m.Router(); len(routers) > 0 && usable4(addr4(routers[0])) {
		a.router = addr4(routers[0])
	}
	if a.addr == server || a.addr == a.router {
		return fmt.Errorf("offers %s, which is its own address or the router's", a.addr)
	}
	if a.duration = m.IPAddressLeaseTime(0); a.duration < minLease {
		return fmt.Errorf("leases %s for %v; %v is the least that is accepted", a.addr, a.duration, minLease)
	}
	// in this order: nanoseconds overflow
	a.setTimes(m.IPAddressRenewalTime(0), m.IPAddressRebindingTime(0), a.duration/8*7)
	return nil
}

func addr4(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func usable4(a netip.Addr) bool {
	return a.Is4() && a.IsGlobalUnicast() && a.As4()[0] != 0 && a.As4()[0] < 224
}
