package dhcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// No answer crashes the client, and none gets it an address that no host can have, for no time, or in another client's name.
func FuzzAnswer4(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}
	xid := dhcpv4.TransactionID{1, 2, 3, 4}
	m := check.Value(dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(xid), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)))(f)
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeOffer, "10.0.0.50", dhcpv4.WithLeaseTime(60)))
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeAck, "10.0.0.50", dhcpv4.WithLeaseTime(0xffffffff), dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 0, 0, 1)))))
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeNak, "0.0.0.0", dhcpv4.WithOption(dhcpv4.OptMessage("no"))))
	request := check.Value(dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(xid), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest)))(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parse4(b, m)
		if err != nil {
			a, err = parse4(b, request)
		}
		if len(a.refusal) > 120 {
			t.Errorf("%q", a.refusal)
		}
		if err != nil || a.refusal != "" {
			return
		}
		k := a.lease(mac.String(), time.Unix(1e9, 0))
		server, err := netip.ParseAddr(k.Server)
		if err != nil || !usable4(k.Addr) || k.Bits < 1 || k.Bits > 32 || !usable4(server) || k.Addr == server {
			t.Fatalf("accepted: %+v", k)
		}
		if !k.Expires.IsZero() {
			ordered(t, k.Renews, k.Rebinds, k.Expires)
		}
	})
}

func FuzzAnswer6(f *testing.F) {
	x := &protocol6{&client{request: request6}}
	m := check.Value(x.newMessage(dhcpv6.MessageTypeSolicit, "", netip.Addr{}))(f)
	m.TransactionID = dhcpv6.TransactionID{1, 2, 3}
	f.Add(reply6(m.ToBytes(), dhcpv6.MessageTypeReply, "fd00::50", time.Minute))
	f.Add(reply6(m.ToBytes(), dhcpv6.MessageTypeAdvertise, "fd00::50", infinite, &dhcpv6.OptStatusCode{StatusMessage: "yes"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parse6(b, m)
		if err != nil || a.refusal != "" || !a.addr.IsValid() {
			return
		}
		k := a.lease("", time.Unix(1e9, 0))
		if !k.Addr.Is6() || k.Addr.Is4In6() || !k.Addr.IsGlobalUnicast() || k.Server == "" {
			t.Fatalf("accepted: %+v", k)
		}
		if !k.Expires.IsZero() {
			ordered(t, k.Renews, k.Rebinds, k.Expires)
		}
	})
}

// No packet from the wire crashes the parser, or has more payload than bytes.
func FuzzPacket(f *testing.F) {
	at := netip.MustParseAddr("10.0.0.50")
	d := marshalUDP4([]byte("message"), at, at)
	copy(d[20:24], []byte{0, serverPort4, 0, clientPort4})
	f.Add(d)
	f.Fuzz(func(t *testing.T, b []byte) {
		if payload, p := parseUDP4(b); p != nil && len(payload)+28 > len(b) {
			t.Errorf("%d bytes out of %d", len(payload), len(b))
		}
	})
}

func ordered(t *testing.T, times ...time.Time) {
	t.Helper()
	for i := 1; i < len(times); i++ {
		if !times[i-1].Before(times[i]) {
			t.Fatalf("in this order: %v", times)
		}
	}
}
