package peers

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A message is what one packet says, once it is opened. On the wire, big endian:
//
//	length(1) name, token(4), period in ms(2), flags(1),
//	epoch(8), view(8), next(8),
//	number(1) of key IDs(4 each),
//	number(2) of echoes: node(6) flags(1) token(4)
//	length(1) void
//
// Whatever follows is from a later version and left alone. With 100 nodes that is
// some 1200 bytes, which fit an Ethernet frame.
type message struct {
	from    string        // the sender's node
	token   uint32        // to be echoed: it proves that this very packet was heard
	period  time.Duration // the next packet follows within
	leaving bool          // the process ends in order: this is the last of it
	card    vip.Heartbeat
	keys    []keyID // what the sender can open
	echoes  []echo
}

// An echo is what a node says of another one.
type echo struct {
	node  nodeID
	hears bool   // it has heard it within its time
	alive bool   // and is heard by it
	token uint32 // the newest that it heard
}

// A nodeID is short for a node's name: the beginning of its SHA-256.
type nodeID [6]byte

func idOf(node string) (id nodeID) {
	sum := sha256.Sum256([]byte(node))
	copy(id[:], sum[:])
	return id
}

// Bits of a message, and of an echo.
const (
	bitLeaving, bitAPI, bitHolds = 1, 2, 4
	bitHears, bitAlive           = 1, 2
)

const (
	maxEchoes = 1000 // a packet is no larger than UDP can carry
	echoLen   = 11
)

// append encodes the message behind b.
func (m *message) append(b []byte) []byte {
	b = append(b, byte(len(m.from)))
	b = append(b, m.from...)
	b = binary.BigEndian.AppendUint32(b, m.token)
	b = binary.BigEndian.AppendUint16(b, uint16(m.period.Milliseconds()))
	b = append(b, bit(m.leaving, bitLeaving)|bit(m.card.APIReachable, bitAPI)|bit(m.card.TenureValid, bitHolds))
	b = binary.BigEndian.AppendUint64(b, uint64(m.card.Epoch))
	b = binary.BigEndian.AppendUint64(b, m.card.StateHash)
	b = binary.BigEndian.AppendUint64(b, m.card.ProposalHash)
	b = append(b, byte(len(m.keys)))
	for _, k := range m.keys {
		b = append(b, k[:]...)
	}
	echoes := m.echoes[:min(len(m.echoes), maxEchoes)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(echoes)))
	for _, e := range echoes {
		b = append(b, e.node[:]...)
		b = append(b, bit(e.hears, bitHears)|bit(e.alive, bitAlive))
		b = binary.BigEndian.AppendUint32(b, e.token)
	}
	b = append(b, byte(len(m.card.VoidedClaim)))
	return append(b, m.card.VoidedClaim...)
}

func bit(set bool, value byte) byte {
	if set {
		return value
	}
	return 0
}

var errShort = errors.New("the message ends too early")

// parseMessage decodes b, of which it keeps nothing.
func parseMessage(b []byte) (*message, error) {
	r := reader{b: b}
	m := &message{from: string(r.take(int(r.byte())))}
	m.token = r.uint32()
	m.period = time.Duration(r.uint16()) * time.Millisecond
	flags := r.byte()
	m.leaving = flags&bitLeaving != 0
	m.card = vip.Heartbeat{APIReachable: flags&bitAPI != 0, TenureValid: flags&bitHolds != 0}
	m.card.Epoch, m.card.StateHash, m.card.ProposalHash = int64(r.uint64()), r.uint64(), r.uint64()
	m.keys = make([]keyID, 0, 2)
	for range r.byte() {
		m.keys = append(m.keys, keyID(r.take(len(keyID{}))))
	}
	n := int(r.uint16())
	if r.short || len(r.b) < n*echoLen {
		return nil, errShort
	}
	m.echoes = make([]echo, n)
	for i := range m.echoes {
		e := &m.echoes[i]
		e.node = nodeID(r.take(len(nodeID{})))
		flags := r.byte()
		e.hears, e.alive = flags&bitHears != 0, flags&bitAlive != 0
		e.token = r.uint32()
	}
	m.card.VoidedClaim = string(r.take(int(r.byte())))
	if r.short {
		return nil, errShort
	}
	return m, nil
}

// A reader takes bytes off b. Once there are too few it gives zeros.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.short, r.b = true, nil
		return make([]byte, n)
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
