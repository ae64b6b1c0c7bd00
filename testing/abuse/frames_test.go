package abuse

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/arp"
	"golang.org/x/net/ipv4"

	"github.com/heraldvip/herald/testing/check"
)

var own = net.HardwareAddr{2, 0x77, 0, 0, 0, 1}

func TestARPFrames(t *testing.T) {
	r := &Running{vips: []netip.Addr{netip.MustParseAddr("10.77.0.50")}}
	node := neighbour{mac: net.HardwareAddr{2, 0x77, 0, 0, 0, 0x11}}
	for i, want := range []struct {
		operation    arp.Operation
		toAll, ofVIP bool
	}{{arp.OperationRequest, true, false}, {arp.OperationRequest, true, false}, {arp.OperationRequest, false, true}, {arp.OperationReply, false, true}} {
		frame := r.arpFrame(i, own, []neighbour{node})
		var p arp.Packet
		check.OK(t, p.UnmarshalBinary(frame[14:]))
		if got := p.SenderIP == r.vips[0]; p.Operation != want.operation || got != want.ofVIP || (frame[0] == 0xff) != want.toAll {
			t.Errorf("frame %d: %v to %x", i, p, frame[:6])
		}
		if p.SenderIP != p.TargetIP && i > 0 {
			t.Errorf("frame %d is no announcement: %v", i, p)
		}
	}
}

func TestOfferFrame(t *testing.T) {
	frame := offerFrame(own)
	h := check.Value(ipv4.ParseHeader(frame[14:34]))(t)
	if h.TotalLen != len(frame)-14 || !h.Dst.Equal(net.IPv4bcast) {
		t.Errorf("%v in a frame of %d bytes", h, len(frame))
	}
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(frame[i])<<8 | uint32(frame[i+1])
	}
	if sum>>16+sum&0xffff != 0xffff {
		t.Errorf("the sum of the header is %x", sum)
	}
	m := check.Value(dhcpv4.FromBytes(frame[42:]))(t)
	if m.MessageType() != dhcpv4.MessageTypeOffer || m.YourIPAddr.IsUnspecified() {
		t.Errorf("%s", m.Summary())
	}
}
