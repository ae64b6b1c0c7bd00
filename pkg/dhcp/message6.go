package dhcp

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

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
