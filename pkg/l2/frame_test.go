package l2

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/mdlayher/ndp"

	"github.com/heraldvip/herald/testing/check"
)

var mac = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0a}

// bytesOf reads hex with spaces and comments.
func bytesOf(t *testing.T, text string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b := check.Value(hex.DecodeString(digits.String()))(t)
	return b
}

// The bytes are written down from the RFCs, not from what the code made.
func TestAnnouncementFrames(t *testing.T) {
	for _, tt := range []struct {
		addr   string
		frames []string
	}{
		{"10.0.0.9", []string{
			`ffffffffffff 02000000000a 0806 # to everybody
			0001 0800 06 04 0001            # RFC 826: Ethernet, IPv4, request
			02000000000a 0a000009           # sender: the announcer, the VIP
			000000000000 0a000009           # target: nobody's address, the VIP (RFC 5227 section 2.3)
			000000000000000000000000000000000000 # up to 60 bytes`,
			`ffffffffffff 02000000000a 0806
			0001 0800 06 04 0002            # reply
			02000000000a 0a000009
			02000000000a 0a000009           # target = sender: what Linux takes for gratuitous
			000000000000000000000000000000000000`,
		}},
		{"2001:db8::9", []string{
			`333300000001 02000000000a 86dd # RFC 2464 section 7: 33:33 and the end of the group
			60000000 0020 3a ff             # 32 bytes of ICMPv6, hop limit 255
			20010db8000000000000000000000009 # from the VIP
			ff020000000000000000000000000001 # to all nodes
			88 00 f911 20000000             # neighbor advertisement, checksum (RFC 8200 section 8.1), only Override is set
			20010db8000000000000000000000009 # target
			02 01 02000000000a              # target link-layer address`,
			`333300000002 02000000000a 86dd
			60000000 0020 3a ff
			20010db8000000000000000000000009
			ff020000000000000000000000000002 # to all routers (RFC 9131)
			88 00 f910 20000000
			20010db8000000000000000000000009
			02 01 02000000000a`,
		}},
	} {
		got := check.Value(announcementFrames(netip.MustParseAddr(tt.addr), mac))(t)
		var want []string
		for _, f := range tt.frames {
			want = append(want, hex.EncodeToString(bytesOf(t, f)))
		}
		var have []string
		for _, f := range got {
			have = append(have, hex.EncodeToString(f))
		}
		check.Same(t, want, have, "%s", tt.addr)
	}
}

func TestNoEthernetAddress(t *testing.T) {
	for _, a := range []string{"10.0.0.9", "2001:db8::9"} {
		for _, m := range []net.HardwareAddr{nil, make(net.HardwareAddr, 20)} {
			if _, err := announcementFrames(netip.MustParseAddr(a), m); err == nil {
				t.Errorf("%s from %q: no error", a, m)
			}
			if _, err := requestFrame(netip.MustParseAddr(a), netip.MustParseAddr(a), m); err == nil {
				t.Errorf("%s asked for from %q: no error", a, m)
			}
		}
	}
}

// by is a message of the host 02:00:00:00:00:mac about its address.
func (k messageKind) by(addr string, mac byte) neighborMessage {
	return neighborMessage{addr: netip.MustParseAddr(addr), mac: [6]byte{2, 0, 0, 0, 0, mac}, kind: k}
}

// asking is m, which asks for an address.
func (m neighborMessage) asking(addr string) neighborMessage {
	m.asks = netip.MustParseAddr(addr)
	return m
}

func TestRequestFrames(t *testing.T) {
	for _, tt := range []struct{ addr, from, frame string }{
		{"10.0.0.9", "10.0.0.2", `ffffffffffff 02000000000a 0806
			0001 0800 06 04 0001    # request
			02000000000a 0a000002   # sender: this node, by an address of its own
			000000000000 0a000009   # target
			000000000000000000000000000000000000`},
		{"10.0.0.9", "0.0.0.0", `ffffffffffff 02000000000a 0806
			0001 0800 06 04 0001
			02000000000a 00000000   # RFC 5227 section 2.1.1: the sender address of a probe is 0
			000000000000 0a000009
			000000000000000000000000000000000000`},
		{"2001:db8::12:3456", "2001:db8::2", `3333ff123456 02000000000a 86dd # RFC 4291 section 2.7.1: the solicited-node group
			60000000 0020 3a ff
			20010db8000000000000000000000002
			ff0200000000000000000001ff123456
			87 00 b350 00000000             # neighbor solicitation
			20010db8000000000000000000123456
			01 01 02000000000a              # source link-layer address`},
		{"2001:db8::12:3456", "::", `3333ff123456 02000000000a 86dd
			60000000 0018 3a ff
			00000000000000000000000000000000
			ff0200000000000000000001ff123456
			87 00 e41e 00000000
			20010db8000000000000000000123456 # and no option (RFC 4861 section 4.3)`},
	} {
		got := check.Value(requestFrame(netip.MustParseAddr(tt.addr), netip.MustParseAddr(tt.from), mac))(t)
		check.Same(t, hex.EncodeToString(bytesOf(t, tt.frame)), hex.EncodeToString(got), "%s from %s", tt.addr, tt.from)
	}
}

func TestParseARP(t *testing.T) {
	const head = "ffffffffffff 02000000000b 0806"
	for _, tt := range []struct {
		name, frame string
		want        neighborMessage
		ok          bool
	}{
		{"request", head + "0001 0800 06 04 0001 02000000000b 0a000009 000000000000 0a000001", messageRequest.by("10.0.0.9", 0x0b).asking("10.0.0.1"), true},
		{"gratuitous request", head + "0001 0800 06 04 0001 02000000000b 0a000009 000000000000 0a000009", messageAnnouncement.by("10.0.0.9", 0x0b), true},
		{"gratuitous reply", head + "0001 0800 06 04 0002 02000000000b 0a000009 02000000000b 0a000009", messageAnnouncement.by("10.0.0.9", 0x0b), true},
		{"reply", head + "0001 0800 06 04 0002 02000000000b 0a000009 02000000000c 0a000001", messageReply.by("10.0.0.9", 0x0b), true},
		{"sender in ARP, not in Ethernet", "ffffffffffff 02000000000d 0806 0001 0800 06 04 0002 02000000000b 0a000009 02000000000c 0a000001", messageReply.by("10.0.0.9", 0x0b), true},
		{"probe", head + "0001 0800 06 04 0001 02000000000b 00000000 000000000000 0a000009", messageProbe.by("10.0.0.9", 0x0b).asking("10.0.0.9"), true},
		{"reply from nobody", head + "0001 0800 06 04 0002 02000000000b 00000000 000000000000 0a000009", neighborMessage{}, false},
		{"probe for nothing", head + "0001 0800 06 04 0001 02000000000b 00000000 000000000000 00000000", neighborMessage{}, false},
		{"not ARP", "ffffffffffff 02000000000b 0800 0001 0800 06 04 0001 02000000000b 0a000009 000000000000 0a000001", neighborMessage{}, false},
		{"not Ethernet", head + "0006 0800 06 04 0001 02000000000b 0a000009 000000000000 0a000001", neighborMessage{}, false},
		{"not IPv4", head + "0001 86dd 06 04 0001 02000000000b 0a000009 000000000000 0a000001", neighborMessage{}, false},
		{"long addresses", head + "0001 0800 08 04 0001 02000000000b0a000009000000000000 0a000001 0000", neighborMessage{}, false},
		{"other operation", head + "0001 0800 06 04 0063 02000000000b 0a000009 000000000000 0a000009", neighborMessage{}, false},
		{"operation of two bytes", head + "0001 0800 06 04 0101 02000000000b 0a000009 000000000000 0a000009", neighborMessage{}, false},
		{"short", head + "0001 0800 06 04 0001 02000000000b 0a000009 000000000000 0a0000", neighborMessage{}, false},
		{"empty", "", neighborMessage{}, false},
	} {
		got, ok := parseARP(bytesOf(t, tt.frame))
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: got %v, %v, want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParseNA(t *testing.T) {
	const target = "20010db8000000000000000000000009"
	for _, tt := range []struct {
		name, message string
		want          neighborMessage
		ok            bool
	}{
		{"unsolicited", "8800 0000 20000000" + target + "0201 02000000000b", messageAnnouncement.by("2001:db8::9", 0x0b), true},
		{"solicited", "8800 0000 60000000" + target + "0201 02000000000b", messageReply.by("2001:db8::9", 0x0b), true},
		{"without an address", "8800 0000 60000000" + target, neighborMessage{}, false},
		{"a source's address", "8800 0000 60000000" + target + "0101 02000000000b", neighborMessage{}, false},
		{"a solicitation", "8700 0000 00000000" + target + "0101 02000000000b", neighborMessage{}, false},
	} {
		m, err := ndp.ParseMessage(bytesOf(t, tt.message))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got, ok := parseNA(m)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: got %v, %v, want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// FuzzParseARP: of any frame parseARP makes a message about an IPv4 address, or none, and what asks gets a reply.
func FuzzParseARP(f *testing.F) {
	a := netip.MustParseAddr("10.0.0.9")
	frames := check.Value(announcementFrames(a, mac))(f)
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
