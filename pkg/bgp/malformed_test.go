package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Types of BGP messages (RFC 4271 section 4.1).
const (
	messageOpen         = 1
	messageUpdate       = 2
	messageNotification = 3
	messageKeepalive    = 4
)

// bgpMessage is a message with its header.
func bgpMessage(kind byte, body ...byte) []byte {
	m := slices.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// updateOf is an UPDATE with path attributes, each with its header, that announces 10.9.0.0/24.
func updateOf(attributes ...[]byte) []byte {
	all := slices.Concat(attributes...)
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(all)))
	return bgpMessage(messageUpdate, append(append(body, all...), 24, 10, 9, 0)...)
}

// Path attributes of a valid UPDATE: flags, type, length, value.
var (
	originIGP   = []byte{0x40, 1, 1, 0}
	asPath      = []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9}
	nextHop     = []byte{0x40, 3, 4, 127, 0, 0, 1}
	as4Path     = []byte{0xc0, 17, 6, 2, 1, 0, 0, 0xfd, 0xe9}
	as4PathLong = []byte{0xc0, 17, 10, 2, 2, 0, 0, 0xfd, 0xe9, 0, 0, 0xfd, 0xe9}
)

// malformed is what a router, or whoever answers at its address, may send: by the first word of its name instead of an OPEN, or once the
// session is established.
var malformed = map[string][]byte{
	"early message of an unknown type":    bgpMessage(9),
	"early header that is too short":      append(slices.Repeat([]byte{0xff}, 16), 0, 3, messageUpdate),
	"early OPEN without a body":           bgpMessage(messageOpen),
	"early OPEN of software without name": bgpMessage(messageOpen, 4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 1, 5, 2, 3, 75, 1, 0),
	"early OPEN whose options are cut":    bgpMessage(messageOpen, 4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 1, 200, 2, 6, 1, 4),
	"early UPDATE":                        updateOf(originIGP, asPath, nextHop),
	"early NOTIFICATION without a body":   bgpMessage(messageNotification),

	"message of an unknown type":                  bgpMessage(9),
	"NOTIFICATION of hard reset without data":     bgpMessage(messageNotification, 6, 9),
	"NOTIFICATION with a text that is cut":        bgpMessage(messageNotification, 6, 2, 200, 'x'),
	"ROUTE-REFRESH that is cut":                   bgpMessage(5, 0, 1),
	"UPDATE without a body":                       bgpMessage(messageUpdate),
	"UPDATE whose withdrawn routes are cut":       bgpMessage(messageUpdate, 0, 1, 24, 0, 0),
	"UPDATE whose attributes are cut":             bgpMessage(messageUpdate, 0, 0, 0, 9, 0x40, 1),
	"AS4_PATH before the AS_PATH":                 updateOf(originIGP, nextHop, as4Path, asPath),
	"AS4_PATH beside an empty AS_PATH":            updateOf(originIGP, []byte{0x40, 2, 0}, nextHop, as4Path),
	"AS4_PATH of the same length":                 updateOf(originIGP, asPath, nextHop, as4Path),
	"AS4_PATH that is longer":                     updateOf(originIGP, asPath, nextHop, as4PathLong),
	"AS_PATH of a segment that is cut":            updateOf(originIGP, []byte{0x40, 2, 2, 2, 9}, nextHop),
	"AS_PATH that is empty":                       updateOf(originIGP, []byte{0x40, 2, 0}, nextHop),
	"ORIGIN without its flag":                     updateOf([]byte{0x00, 1, 1, 0}, asPath, nextHop),
	"ORIGIN without a value":                      updateOf([]byte{0x40, 1, 0}, asPath, nextHop),
	"NEXT_HOP of three bytes":                     updateOf(originIGP, asPath, []byte{0x40, 3, 3, 10, 0, 0}),
	"NEXT_HOP without a value":                    updateOf(originIGP, asPath, []byte{0x40, 3, 0}),
	"unknown attribute that is well-known":        updateOf(originIGP, asPath, nextHop, []byte{0x40, 99, 1, 0}),
	"attribute that is longer than the message":   updateOf(originIGP, asPath, nextHop, []byte{0xd0, 32, 0xff, 0xff}),
	"AGGREGATOR of four bytes":                    updateOf(originIGP, asPath, nextHop, []byte{0xc0, 7, 4, 1, 2, 3, 4}),
	"AS4_AGGREGATOR without AGGREGATOR":           updateOf(originIGP, asPath, nextHop, []byte{0xc0, 18, 8, 0, 0, 0, 1, 1, 2, 3, 4}),
	"PREFIX_SID that is cut":                      updateOf(originIGP, asPath, nextHop, []byte{0xc0, 40, 4, 5, 0, 9, 0}),
	"MP_REACH_NLRI without a body":                updateOf(originIGP, asPath, nextHop, []byte{0x80, 14, 0}),
	"MP_REACH_NLRI with an empty next hop":        updateOf(originIGP, asPath, []byte{0x80, 14, 5, 0, 2, 1, 0, 0}),
	"MP_REACH_NLRI of flow specifications":        updateOf(originIGP, asPath, []byte{0x80, 14, 9, 0, 1, 133, 0, 0, 3, 1, 200, 10}),
	"MP_UNREACH_NLRI of another address family":   updateOf(originIGP, asPath, nextHop, []byte{0x80, 15, 3, 0, 25, 70}),
	"MP_UNREACH_NLRI of a prefix that is cut":     updateOf(originIGP, asPath, nextHop, []byte{0x80, 15, 5, 0, 2, 1, 64, 0x20}),
	"LARGE_COMMUNITY of seven bytes":              updateOf(originIGP, asPath, nextHop, []byte{0xc0, 32, 7, 1, 2, 3, 4, 5, 6, 7}),
	"EXTENDED COMMUNITIES of three bytes":         updateOf(originIGP, asPath, nextHop, []byte{0xc0, 16, 3, 1, 2, 3}),
	"TUNNEL_ENCAP that is cut":                    updateOf(originIGP, asPath, nextHop, []byte{0xc0, 23, 4, 0, 15, 0, 99}),
	"two ORIGINs, the second malformed":           updateOf(originIGP, asPath, nextHop, []byte{0x40, 1, 2, 0, 0}),
	"prefix that is longer than an IPv4 address":  bgpMessage(messageUpdate, append(append([]byte{0, 0, 0, 20}, slices.Concat(originIGP, asPath, nextHop)...), 200, 10, 9, 0)...),
	"UPDATE that withdraws a prefix of 255 bits ": bgpMessage(messageUpdate, 0, 4, 255, 10, 9, 0, 0, 0),
}

// TestMalformedMessages: nothing that a router sends, or whoever answers at its address, ends this process; and a session with the router is
// established again.
func TestMalformedMessages(t *testing.T) {
	for name, message := range malformed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := check.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer l.Close()
			sent := make(chan error, 1)
			go func() { sent <- answerOnce(l, message, strings.HasPrefix(name, "early ")) }()
			s := runSpeaker(t, nil, vip.BGPPeer{Address: netip.MustParseAddr("127.0.0.1"), Port: uint16(l.Addr().(*net.TCPAddr).Port), AS: 65001})
			s.advertise("192.0.2.1/32")
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			established := make(chan error, 1)
			go func() {
				_, err := openSession(l)
				established <- err
			}()
			s.up()
			check.OK(t, <-established)
		})
	}
}

// answerOnce takes a connection, sends the message, early instead of its OPEN, else once the session is established, and waits until the other side hangs up; a
// message that does it no harm leaves the session as it is, and then answerOnce ends it.
func answerOnce(l net.Listener, message []byte, early bool) error {
	var c net.Conn
	var err error
	if early {
		c, err = l.Accept()
	} else {
		c, err = openSession(l)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(message); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, _ = io.Copy(io.Discard, c)
	return nil
}

// openSession takes a connection and establishes the session, as AS 65001.
func openSession(l net.Listener) (net.Conn, error) {
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	// Capabilities: IPv4 unicast, AS numbers of four bytes.
	open := bgpMessage(messageOpen, 4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 1, 14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfd, 0xe9)
	for _, m := range [][]byte{open, bgpMessage(messageKeepalive)} {
		if _, err := c.Write(m); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		header := make([]byte, 19)
		if _, err := io.ReadFull(c, header); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(header[16:]))-19); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		switch header[18] {
		case messageKeepalive:
			return c, nil
		case messageNotification:
			return nil, errors.Join(fmt.Errorf("the other side sends a NOTIFICATION"), c.Close())
		}
	}
}
