package bgp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// A message is a whole BGP message with its header (RFC 4271 section 4).
type message []byte

const (
	headerSize  = 19
	maxSize     = 4096                   // without Extended Messages (RFC 8654), which are not offered
	aliveEvery  = 100 * time.Millisecond // GoBGP is told at most this often that the router lives
	sizeOfOpen  = headerSize + 10        // at least
	familySize  = 4                      // of each family in a graceful restart capability
	markerBytes = 16                     // all ones
)

// minSize is the least size of each type; exactly that of KEEPALIVE and ROUTE-REFRESH.
var minSize = map[byte]int{
	bgp.BGP_MSG_OPEN: sizeOfOpen, bgp.BGP_MSG_UPDATE: headerSize + 4, bgp.BGP_MSG_NOTIFICATION: headerSize + 2,
	bgp.BGP_MSG_KEEPALIVE: headerSize, bgp.BGP_MSG_ROUTE_REFRESH: headerSize + 4,
}

func newMessage(kind byte, body ...byte) message {
	m := append(bytes.Repeat([]byte{0xff}, markerBytes), 0, 0, kind)
	binary.BigEndian.PutUint16(m[markerBytes:], uint16(headerSize+len(body)))
	return append(m, body...)
}

func (m message) kind() byte   { return m[headerSize-1] }
func (m message) body() []byte { return m[headerSize:] }

// A refusal is why the router's message ends the session, with the NOTIFICATION; code 0: none.
type refusal struct {
	code, subcode byte
	data          []byte
	why           string
}

func (r *refusal) Error() string { return r.why }

func (r *refusal) message() message {
	return newMessage(bgp.BGP_MSG_NOTIFICATION, append([]byte{r.code, r.subcode}, r.data...)...)
}

// refuse is a refusal whose reason begins with the message's fault.
func refuse(code, subcode byte, data []byte, format string, a ...any) *refusal {
	why := fmt.Sprintf("what the peer sent was refused: "+format, a...)
	return &refusal{code, subcode, data, fmt.Sprintf("%s (NOTIFICATION %d/%d)", why, code, subcode)}
}

// readMessage reads a whole message; its error is a *refusal if the header is malformed (RFC 4271 section 6.1).
func readMessage(from io.Reader) (message, error) {
	m := make(message, headerSize, 128)
	if _, err := io.ReadFull(from, m); err != nil {
		return nil, err
	}
	size, kind := int(binary.BigEndian.Uint16(m[markerBytes:])), m.kind()
	least, known := minSize[kind]
	fixed := kind == bgp.BGP_MSG_KEEPALIVE || kind == bgp.BGP_MSG_ROUTE_REFRESH
	switch {
	case slices.ContainsFunc(m[:markerBytes], func(b byte) bool { return b != 0xff }):
		return nil, refuse(1, 1, nil, "the marker of a message is not all ones")
	case size < headerSize || size > maxSize:
		return nil, refuse(1, 2, m[16:18], "a message of %d bytes", size)
	case !known:
		return nil, refuse(1, 3, []byte{kind}, "a message of the unknown type %d", kind)
	case size < least || fixed && size != least:
		return nil, refuse(1, 2, m[16:18], "a message of type %d with %d bytes", kind, size)
	}
	m = append(m, make([]byte, size-headerSize)...)
	_, err := io.ReadFull(from, m.body())
	return m, err
}

// An open is an OPEN (RFC 4271 section 4.2) with all parameters' capabilities (RFC 5492).
type open struct {
	as           uint32 // by the four-octet AS capability if there is one (RFC 6793)
	hold         uint16 // seconds
	id           [4]byte
	capabilities []capability
}

type capability struct {
	code  byte
	value []byte
}

// parseOpen takes apart an OPEN of the right size; an error for wrong lengths or unknown parameters.
func parseOpen(m message) (o open, r *refusal) {
	b := m.body()
	if b[0] != 4 {
		return o, refuse(2, 1, []byte{0, 4}, "BGP version %d", b[0])
	}
	o.as, o.hold, o.id = uint32(binary.BigEndian.Uint16(b[1:])), binary.BigEndian.Uint16(b[3:]), [4]byte(b[5:9])
	malformed := refuse(2, 0, nil, "an OPEN with a wrong length in its parameters or capabilities")
	size, params, lengthBytes := int(b[9]), b[10:], 1
	if size == 255 && len(params) >= 3 && params[0] == 255 { // extended length (RFC 9072)
		size, params, lengthBytes = int(binary.BigEndian.Uint16(params[1:])), params[3:], 2
	}
	if size != len(params) {
		return o, malformed
	}
	for len(params) > 0 {
		kind, value, rest, ok := takeTLV(params, lengthBytes)
		switch {
		case !ok:
			return o, malformed
		case kind != bgp.BGP_OPT_CAPABILITY:
			return o, refuse(2, 4, nil, "an OPEN with a parameter of the unknown type %d", kind)
		}
		for params = rest; len(value) > 0; {
			var c capability
			if c.code, c.value, value, ok = takeTLV(value, 1); !ok || !c.wellFormed() {
				return o, malformed
			}
			if o.capabilities = append(o.capabilities, c); bgp.BGPCapabilityCode(c.code) == bgp.BGP_CAP_FOUR_OCTET_AS_NUMBER {
				o.as = binary.BigEndian.Uint32(c.value)
			}
		}
	}
	return o, nil
}

// takeTLV takes a type, a length of one or two bytes and a value from b; false if b is too short.
func takeTLV(b []byte, lengthBytes int) (kind byte, value, rest []byte, ok bool) {
	if len(b) < 1+lengthBytes {
		return 0, nil, nil, false
	}
	size := int(b[lengthBytes])
	if lengthBytes == 2 {
		size += int(b[1]) << 8
	}
	if b, kind = b[1+lengthBytes:], b[0]; size > len(b) {
		return 0, nil, nil, false
	}
	return kind, b[:size], b[size:], true
}

// wellFormed reports whether a capability that Herald reads has a right length.
func (c capability) wellFormed() bool {
	switch n := len(c.value); bgp.BGPCapabilityCode(c.code) {
	case bgp.BGP_CAP_MULTIPROTOCOL, bgp.BGP_CAP_FOUR_OCTET_AS_NUMBER:
		return n == 4
	case bgp.BGP_CAP_ROUTE_REFRESH:
		return n == 0
	case bgp.BGP_CAP_GRACEFUL_RESTART:
		return n >= 2 && (n-2)%familySize == 0
	case bgp.BGP_CAP_EXTENDED_NEXTHOP:
		return n%6 == 0
	}
	return true
}

// find is the value of the last capability with a code, like GoBGP's.
func (o open) find(code bgp.BGPCapabilityCode) (value []byte, ok bool) {
	for _, c := range o.capabilities {
		if bgp.BGPCapabilityCode(c.code) == code {
			value, ok = c.value, true
		}
	}
	return value, ok
}

// names reports whether the OPEN has a capability with this value, or with it among others of its size.
func (o open) names(code bgp.BGPCapabilityCode, value ...byte) bool {
	return slices.ContainsFunc(o.capabilities, func(c capability) bool {
		return bgp.BGPCapabilityCode(c.code) == code && slices.ContainsFunc(
			slices.Collect(slices.Chunk(c.value, len(value))), func(x []byte) bool { return bytes.Equal(x, value) })
	})
}

// message is the OPEN with its capabilities in one parameter, which must have room for them.
func (o open) message() message {
	var all []byte
	for _, c := range o.capabilities {
		all = append(append(all, c.code, byte(len(c.value))), c.value...)
	}
	as := uint16(bgp.AS_TRANS)
	if o.as <= 0xffff {
		as = uint16(o.as)
	}
	b := binary.BigEndian.AppendUint16([]byte{4}, as)
	b = append(binary.BigEndian.AppendUint16(b, o.hold), o.id[:]...)
	if len(all) > 0 {
		all = append([]byte{bgp.BGP_OPT_CAPABILITY, byte(len(all))}, all...)
	}
	return newMessage(bgp.BGP_MSG_OPEN, append(append(b, byte(len(all))), all...)...)
}

// asSent is GoBGP's OPEN for the router: with this node's identifier and, for graceful restart (RFC 4724 section 3),
// that former routes still work, and whether this process has just started.
func (o open) asSent(id [4]byte, restarted bool) message {
	o.id = id
	if v, ok := o.find(bgp.BGP_CAP_GRACEFUL_RESTART); ok {
		if restarted {
			v[0] |= 0x80
		}
		for i := 5; i < len(v); i += familySize {
			v[i] |= 0x80
		}
	}
	return o.message()
}

var (
	valueIPv4     = []byte{0, 1, 0, 1} // of the multiprotocol capability (RFC 4760 section 8)
	valueIPv6     = []byte{0, 2, 0, 1}
	valueIPv4Hop6 = []byte{0, 1, 0, 1, 0, 2} // of the extended next hop capability (RFC 8950 section 4)
)

// An inbound is what a router has sent on one connection.
type inbound struct {
	as, localAS uint32  // as configured; 0 takes whatever the router says
	localID     [4]byte // this node's identifier

	received int  // how many of OPEN and KEEPALIVE, which come first
	router   open // what the router said of itself
	noIPv4   bool // the router takes no routes of the family
	noIPv6   bool
	noHop6   bool // nor IPv4 routes with an IPv6 next hop

	alive     time.Time          // when GoBGP was told last that the router lives
	refreshes map[byte]time.Time // when GoBGP was last told to send all routes again, by address family
}

// next is what GoBGP gets for the router's message, or nil; a refusal if the session ends. An UPDATE is only a sign of
// life, so faults within need no look (RFC 7606). It may wait a second for a router that always asks for all routes.
func (in *inbound) next(m message) (message, *refusal) {
	kind := m.kind()
	switch {
	case kind == bgp.BGP_MSG_NOTIFICATION:
		return nil, &refusal{why: "the peer sent a NOTIFICATION, " + explain(m)}
	case in.received == 0 && kind == bgp.BGP_MSG_OPEN:
		in.received++
		return in.takeOpen(m)
	case in.received == 1 && kind == bgp.BGP_MSG_KEEPALIVE:
		in.received++
		return newMessage(kind), nil
	case in.received < 2 || kind == bgp.BGP_MSG_OPEN: // RFC 6608
		return nil, refuse(5, byte(in.received+1), []byte{kind}, "a message of type %d where none is allowed", kind)
	case kind == bgp.BGP_MSG_ROUTE_REFRESH:
		return in.takeRefresh(m.body()), nil
	case kind == bgp.BGP_MSG_UPDATE && !framed(m.body()):
		return nil, refuse(3, 1, nil, "an UPDATE whose parts are longer than it")
	}
	if time.Since(in.alive) < aliveEvery {
		return nil, nil
	}
	in.alive = time.Now()
	return newMessage(bgp.BGP_MSG_KEEPALIVE), nil
}

// takeOpen checks the router's OPEN, and returns what GoBGP needs of it.
func (in *inbound) takeOpen(m message) (message, *refusal) {
	o, r := parseOpen(m)
	if r != nil {
		return nil, r
	}
	v4, v6 := o.names(bgp.BGP_CAP_MULTIPROTOCOL, valueIPv4...), o.names(bgp.BGP_CAP_MULTIPROTOCOL, valueIPv6...)
	_, named := o.find(bgp.BGP_CAP_MULTIPROTOCOL)
	switch {
	case o.as == 0 || in.as != 0 && o.as != in.as:
		return nil, refuse(2, 2, nil, "it is AS %d, and AS %d is configured for it", o.as, in.as)
	case o.id == [4]byte{} || o.as == in.localAS && o.id == in.localID: // RFC 6286
		return nil, refuse(2, 3, nil, "its BGP identifier is 0, or this node's")
	case o.hold < 3: // GoBGP can't do without one
		return nil, refuse(2, 6, nil, "a hold time of %d s, where 3 are the least", o.hold)
	case named && !v4 && !v6:
		data := append([]byte{byte(bgp.BGP_CAP_MULTIPROTOCOL), 4}, valueIPv4...)
		return nil, refuse(2, 7, data, "neither IPv4 nor IPv6 unicast is activated for this node")
	}
	in.router, in.noIPv4, in.noIPv6 = o, named && !v4, !v6
	in.noHop6 = !o.names(bgp.BGP_CAP_EXTENDED_NEXTHOP, valueIPv4Hop6...)
	pass := open{as: o.as, hold: o.hold, id: [4]byte{192, 0, 2, 1}} // GoBGP has no use for the identifier
	add := func(code bgp.BGPCapabilityCode, value []byte, when bool) {
		if when {
			pass.capabilities = append(pass.capabilities, capability{byte(code), value})
		}
	}
	add(bgp.BGP_CAP_MULTIPROTOCOL, valueIPv4, v4)
	add(bgp.BGP_CAP_MULTIPROTOCOL, valueIPv6, v6)
	as4, ok := o.find(bgp.BGP_CAP_FOUR_OCTET_AS_NUMBER)
	add(bgp.BGP_CAP_FOUR_OCTET_AS_NUMBER, as4, ok)
	_, ok = o.find(bgp.BGP_CAP_ROUTE_REFRESH)
	add(bgp.BGP_CAP_ROUTE_REFRESH, nil, ok)
	if restart, ok := o.find(bgp.BGP_CAP_GRACEFUL_RESTART); ok { // no families and no time: no route of the router is kept
		add(bgp.BGP_CAP_GRACEFUL_RESTART, []byte{restart[0] & 0x40, 0}, true)
	}
	return pass.message(), nil
}

// takeRefresh is a ROUTE-REFRESH (RFC 2918) for unicast, one a second for each family; others are ignored.
func (in *inbound) takeRefresh(body []byte) message {
	family := body[1]
	if !bytes.Equal(body, valueIPv4) && !bytes.Equal(body, valueIPv6) {
		return nil
	}
	if in.refreshes == nil {
		in.refreshes = make(map[byte]time.Time)
	}
	time.Sleep(time.Second - time.Since(in.refreshes[family]))
	in.refreshes[family] = time.Now()
	return newMessage(bgp.BGP_MSG_ROUTE_REFRESH, 0, family, 0, 1)
}

// framed reports whether the lengths in an UPDATE fit into it (RFC 4271 section 6.3).
func framed(body []byte) bool {
	withdrawn := 2 + int(binary.BigEndian.Uint16(body))
	return withdrawn+2 <= len(body) && withdrawn+2+int(binary.BigEndian.Uint16(body[withdrawn:])) <= len(body)
}

// explain is what a NOTIFICATION says, with a shutdown communication (RFC 9003), also within a hard reset (RFC 8538).
func explain(m message) string {
	code, subcode, data := m.body()[0], m.body()[1], m.body()[2:]
	text := bgp.NewNotificationErrorCode(code, subcode).String()
	if code == bgp.BGP_ERROR_CEASE && subcode == bgp.BGP_ERROR_SUB_HARD_RESET && len(data) >= 2 {
		code, subcode, data = data[0], data[1], data[2:]
	}
	shutdown := subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN || subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET
	if code == bgp.BGP_ERROR_CEASE && shutdown && len(data) > 1 && int(data[0]) < len(data) {
		text += fmt.Sprintf(", saying %q", data[1:1+int(data[0])])
	}
	return text
}
