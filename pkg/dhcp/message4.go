package dhcp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

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
