package dhcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// No answer crashes the client, and none gets it an address that no host can have,
// for no time, or in another client's name.
func FuzzAnswer4(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}
	xid := dhcpv4.TransactionID{1, 2, 3, 4}
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(xid), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	must(f, err)
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeOffer, "10.0.0.50", dhcpv4.WithLeaseTime(60)))
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeAck, "10.0.0.50", dhcpv4.WithLeaseTime(0xffffffff), dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 0, 0, 1)))))
	f.Add(reply4(m.ToBytes(), dhcpv4.MessageTypeNak, "0.0.0.0", dhcpv4.WithOption(dhcpv4.OptMessage("no"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := read4(b, mac, xid, dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
		if err != nil || a.nak {
			return
		}
		k := a.contract(mac.String(), time.Unix(1e9, 0))
		if !usable4(k.Addr) || k.Bits < 1 || k.Bits > 32 || !usable4(a.server) || k.Addr == a.server {
			t.Fatalf("believed: %+v", k)
		}
		if !k.Expires.IsZero() {
			ordered(t, k.Renews, k.Rebinds, k.Expires)
		}
		if len(printable(a.text)) > 110 {
			t.Errorf("%q", printable(a.text))
		}
	})
}

func FuzzAnswer6(f *testing.F) {
	id := hire6.DUID
	x := &v6{client: &client{hire: hire6}}
	xid := dhcpv6.TransactionID{1, 2, 3}
	m := x.message(dhcpv6.MessageTypeSolicit, xid, 0, options6{rapid: true})
	f.Add(reply6(m, dhcpv6.MessageTypeReply, "fd00::50", time.Minute))
	f.Add(reply6(m, dhcpv6.MessageTypeAdvertise, "fd00::50", forever, &dhcpv6.OptStatusCode{StatusMessage: "yes"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := read6(b, id, iaid(hire6.IAID), xid, dhcpv6.MessageTypeAdvertise, dhcpv6.MessageTypeReply)
		if err != nil || a.refusal != "" || !a.addr.IsValid() {
			return
		}
		k := a.contract("", time.Unix(1e9, 0))
		if !k.Addr.Is6() || k.Addr.Is4In6() || !k.Addr.IsGlobalUnicast() || k.Server == "" {
			t.Fatalf("believed: %+v", k)
		}
		if !k.Expires.IsZero() {
			ordered(t, k.Renews, k.Rebinds, k.Expires)
		}
	})
}

// What comes from the wire, whole.
func FuzzPacket(f *testing.F) {
	at := netip.MustParseAddr("10.0.0.50")
	d := datagram([]byte("message"), at, at)
	copy(d[20:24], []byte{0, serverPort4, 0, clientPort4})
	f.Add(d)
	f.Add(arpProbe(net.HardwareAddr{2, 0, 0, 0, 0, 1}, at))
	f.Add(solicitation(netip.MustParseAddr("fd00::50")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if payload, p := undatagram(b); p != nil && len(payload)+28 > len(b) {
			t.Errorf("%d bytes out of %d", len(payload), len(b))
		}
		owner(b, at)
		answers(b, netip.MustParseAddr("fd00::50"))
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
