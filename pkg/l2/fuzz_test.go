package l2

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/mdlayher/ndp"

	"github.com/heraldvip/herald/testing/check"
)

// FuzzParseARP: of any frame parseARP makes a message about an IPv4 address, or none, and what asks gets a reply.
func FuzzParseARP(f *testing.F) {
	a := netip.MustParseAddr("10.0.0.9")
	frames, err := announcementFrames(a, mac)
	check.OK(f, err)
	for _, frame := range append(frames, nil, arpBytes(1, netip.IPv4Unspecified(), a), arpBytes(2, a, a), arpBytes(257, a, a)) {
		f.Add(frame)
		f.Add(frame[:min(len(frame), 41)])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, ok := parseARP(frame)
		if !ok {
			return
		}
		if !m.addr.Is4() || m.addr.IsUnspecified() {
			t.Errorf("%x: %v", frame, m)
		}
		if m.asks.IsValid() {
			check.Value(replyFrame(m, mac))(t)
		}
	})
}

// FuzzParseNA: of any ICMPv6 message parseNA makes one about an IPv6 address, or none; and what
// it reads is what such an advertisement says that is sent again.
func FuzzParseNA(f *testing.F) {
	a := netip.MustParseAddr("fd00::9")
	for _, solicited := range []bool{true, false} {
		na := &ndp.NeighborAdvertisement{Solicited: solicited, Override: true, TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}}}
		b := check.Value(ndp.MarshalMessage(na))(f)
		f.Add(b)
		f.Add(append(b, b[len(b)-8:]...)) // the option twice
		f.Add(b[:len(b)-1])
	}
	mapped := check.Value(ndp.MarshalMessage(&ndp.NeighborAdvertisement{TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}}}))(f)
	copy(mapped[8:], netip.MustParseAddr("::ffff:10.0.0.9").AsSlice())
	f.Add(mapped)
	f.Add(check.Value(ndp.MarshalMessage(&ndp.NeighborSolicitation{TargetAddress: a}))(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		message, err := ndp.ParseMessage(b)
		if err != nil {
			return
		}
		m, ok := parseNA(message)
		if !ok {
			return
		}
		if !m.addr.Is6() || m.addr.Is4In6() || m.addr.Zone() != "" || m.kind != messageReply && m.kind != messageAnnouncement {
			t.Errorf("%x: %v", b, m)
		}
		again := &ndp.NeighborAdvertisement{Solicited: m.kind == messageReply, TargetAddress: m.addr, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: m.mac[:]}}}
		if n, ok := parseNA(again); !ok || n != m {
			t.Errorf("%x: %v, and of the same sent again %v", b, m, n)
		}
	})
}

// arpBytes is an ARP frame, byte by byte.
func arpBytes(op uint16, sender, target netip.Addr) []byte {
	f := append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, op)
	f = append(append(f, otherMAC...), sender.AsSlice()...)
	f = append(append(f, make([]byte, 6)...), target.AsSlice()...)
	return append(f, make([]byte, 18)...)
}
