package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// errOther: the message is another client's, or of another exchange.
var errOther = errors.New("a message for somebody else")

// An answer4 is what a server said, checked.
type answer4 struct {
	nak            bool
	text           string // option 56
	addr           netip.Addr
	bits           int
	server, router netip.Addr
	lease          time.Duration // 0: infinite
	t1, t2         time.Duration
}

// read reads an answer to this client in the exchange xid, of one of kinds.
func (x *v4) read(b []byte, xid dhcpv4.TransactionID, kinds ...dhcpv4.MessageType) (a answer4, err error) {
	mac, err := net.ParseMAC(x.hire.MAC)
	if err != nil {
		return a, err
	}
	return read4(b, mac, xid, kinds...)
}

func read4(b []byte, mac net.HardwareAddr, xid dhcpv4.TransactionID, kinds ...dhcpv4.MessageType) (a answer4, err error) {
	// The decoder is other people's, and what it reads anybody may have sent: a
	// mistake in it must not take down every VIP of the node.
	defer func() {
		if r := recover(); r != nil {
			a, err = answer4{}, fmt.Errorf("an answer can't be decoded: %v", r)
		}
	}()
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errOther, err) // whose it is can't be told
	}
	if m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != xid || !bytes.Equal(m.ClientHWAddr, mac) {
		return a, errOther
	}
	if id := m.GetOneOption(dhcpv4.OptionClientIdentifier); id != nil && !bytes.Equal(id, clientID(mac)) {
		return a, errOther // RFC 6842
	}
	if !slices.Contains(kinds, m.MessageType()) {
		return a, errOther
	}
	if a.server, err = one4(m, dhcpv4.OptionServerIdentifier); err != nil {
		return a, err
	}
	if !a.server.IsValid() || !usable4(a.server) {
		return a, errors.New("an answer names no server that could be")
	}
	a.text = m.Message()
	if m.MessageType() == dhcpv4.MessageTypeNak {
		a.nak = true
		return a, nil
	}
	return a, a.terms(m)
}

// terms reads what is offered.
func (a *answer4) terms(m *dhcpv4.DHCPv4) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("the server %s %s", a.server, fmt.Sprintf(format, args...))
	}
	addr, ok := netip.AddrFromSlice(m.YourIPAddr)
	a.addr = addr.Unmap()
	if !ok || !usable4(a.addr) {
		return wrong("offers %s, which no host can have", m.YourIPAddr)
	}
	mask, err := one4(m, dhcpv4.OptionSubnetMask)
	if err != nil {
		return err
	}
	a.bits = 32
	if mask.IsValid() {
		n, size := net.IPMask(mask.AsSlice()).Size()
		if size == 0 || n == 0 {
			return wrong("offers %s with the subnet mask %s, which is none", a.addr, mask)
		}
		a.bits = n
	}
	if p := netip.PrefixFrom(a.addr, a.bits); a.bits < 31 && (p.Masked().Addr() == a.addr || last4(p) == a.addr) {
		return wrong("offers %s, which is the address of the network %s itself, or its broadcast address", a.addr, p.Masked())
	}
	if r, err := one4(m, dhcpv4.OptionRouter); err == nil && r.IsValid() && usable4(r) {
		a.router = r
	}
	if a.addr == a.server || a.addr == a.router {
		return wrong("offers %s, which is its own address or the router's", a.addr)
	}
	lease := seconds4(m, dhcpv4.OptionIPAddressLeaseTime)
	switch {
	case lease == forever:
		return nil
	case lease < least:
		return wrong("leases %s for %v; %v is the least that is of use", a.addr, lease, least)
	}
	a.lease = lease
	a.t1, a.t2 = seconds4(m, dhcpv4.OptionRenewTimeValue), seconds4(m, dhcpv4.OptionRebindingTimeValue)
	a.t1, a.t2 = times(a.lease, a.t1, a.t2)
	return nil
}

// times is T1 and T2, or what RFC 2131 section 4.4.5 takes for them, if they are not sensible.
func times(lease, t1, t2 time.Duration) (time.Duration, time.Duration) {
	if t2 < time.Second || t2 >= lease {
		t2 = lease / 8 * 7 // in this order: nanoseconds overflow
	}
	if t1 < time.Second || t1 >= t2 {
		t1 = min(lease/2, t2/7*4)
	}
	return t1, t2
}

// forever is an infinite lease (RFC 2131 section 3.3).
const forever = 0xffffffff * time.Second

func (a answer4) contract(mac string, sent time.Time) vip.DHCPLease {
	k := vip.DHCPLease{Addr: a.addr, Bits: a.bits, MAC: mac, Server: a.server.String(), Router: a.router}
	if a.lease > 0 {
		k.Expires, k.Renews, k.Rebinds = sent.Add(a.lease), sent.Add(a.t1), sent.Add(a.t2)
	}
	return k
}

// one4 is the first address of an option, or none if it is absent.
func one4(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode) (netip.Addr, error) {
	b := m.GetOneOption(code)
	if b == nil {
		return netip.Addr{}, nil
	}
	if len(b) < 4 || len(b)%4 != 0 {
		return netip.Addr{}, fmt.Errorf("an answer's option %v has %d bytes", code, len(b))
	}
	return netip.AddrFrom4([4]byte(b[:4])), nil
}

// seconds4 is an option of 32 bits, or 0.
func seconds4(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode) time.Duration {
	b := m.GetOneOption(code)
	if len(b) != 4 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Second
}

// usable4 reports whether a host may have a.
func usable4(a netip.Addr) bool {
	return a.Is4() && a.IsGlobalUnicast() && a.As4()[0] != 0 && a.As4()[0] < 224
}

// last4 is the broadcast address of p.
func last4(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// printable is what a server wrote, fit for a message.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > 100 {
		s = strings.ToValidUTF8(s[:100], "") + "..."
	}
	return strings.TrimSpace(s)
}
