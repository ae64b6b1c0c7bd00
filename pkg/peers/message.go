package peers

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A message is the content of a packet. Encoded, in big endian:
//
//	length(1) name, nonce(4), transmit interval in ms(2), flags(1),
//	epoch(8), state hash(8), proposal hash(8),
//	number of the table(8), its digest(8), number carried out(8),
//	number(2) of echoes: node(6) flags(1) nonce(4)
//	length(1) voided claim
//
// What follows is of a later version, and ignored. With 100 nodes that is some 1200 bytes, which fit an Ethernet frame.
type message struct {
	from      string        // the sender's node
	nonce     uint32        // random; the receivers echo it
	interval  time.Duration // the next packet follows within
	stopping  bool          // the process ends, and sends no more
	heartbeat vip.Heartbeat
	echoes    []echo // one for each node of which it has received a packet
}

// An echo shows a node that its packet was received, and others whether it is heard.
type echo struct {
	node  nodeID
	hears bool   // the sender received a verified packet of it within the detection time
	nonce uint32 // in the last packet of it
}

type nodeID [6]byte

// idOf returns the first 6 bytes of the SHA-256 of a node's name.
func idOf(node string) (id nodeID) {
	sum := sha256.Sum256([]byte(node))
	copy(id[:], sum[:])
	return id
}

const (
	// Flags of a message, and of an echo.
	flagStopping, flagAPIReachable, flagTenureValid      = 1, 2, 4
	flagMovesUnwritten, flagIsolated, flagAPIServerReady = 8, 16, 32
	flagHears                                            = 1

	maxEchoes = 1000 // more would not fit a UDP packet
	echoLen   = 11
)

// append appends the encoded message to b, up to maxEchoes.
func (m *message) append(b []byte) []byte {
	b = append(b, byte(len(m.from)))
	b = append(b, m.from...)
	b = binary.BigEndian.AppendUint32(b, m.nonce)
	b = binary.BigEndian.AppendUint16(b, uint16(m.interval.Milliseconds()))
	h := m.heartbeat
	b = append(b, flag(m.stopping, flagStopping)|flag(h.APIReachable, flagAPIReachable)|
		flag(h.TenureValid, flagTenureValid)|flag(h.MovesUnwritten, flagMovesUnwritten)|flag(h.Isolated, flagIsolated)|
		flag(h.APIServerReady, flagAPIServerReady))
	for _, n := range []uint64{uint64(h.Epoch), h.StateHash, h.ProposalHash, uint64(h.Table), h.TableDigest,
		uint64(h.Carried)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	echoes := m.echoes[:min(len(m.echoes), maxEchoes)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(echoes)))
	for _, e := range echoes {
		b = append(b, e.node[:]...)
		b = append(b, flag(e.hears, flagHears))
		b = binary.BigEndian.AppendUint32(b, e.nonce)
	}
	b = append(b, byte(len(h.VoidedClaim)))
	return append(b, h.VoidedClaim...)
}

func flag(set bool, value byte) byte {
	if set {
		return value
	}
	return 0
}

var errShort = errors.New("the message ends too early")

// parseMessage decodes b, and keeps nothing of it. It returns errShort if b ends too early.
func parseMessage(b []byte) (*message, error) {
	r := reader{b: b}
	m := &message{from: string(r.take(int(r.byte())))}
	m.nonce = r.uint32()
	m.interval = time.Duration(r.uint16()) * time.Millisecond
	flags := r.byte()
	m.stopping = flags&flagStopping != 0
	m.heartbeat = vip.Heartbeat{
		APIReachable: flags&flagAPIReachable != 0, TenureValid: flags&flagTenureValid != 0,
		MovesUnwritten: flags&flagMovesUnwritten != 0, Isolated: flags&flagIsolated != 0,
		APIServerReady: flags&flagAPIServerReady != 0,
	}
	m.heartbeat.Epoch, m.heartbeat.StateHash, m.heartbeat.ProposalHash = int64(r.uint64()), r.uint64(), r.uint64()
	m.heartbeat.Table, m.heartbeat.TableDigest, m.heartbeat.Carried = int64(r.uint64()), r.uint64(), int64(r.uint64())
	n := int(r.uint16())
	if r.short || len(r.b) < n*echoLen {
		return nil, errShort
	}
	m.echoes = make([]echo, n)
	for i := range m.echoes {
		e := &m.echoes[i]
		e.node = nodeID(r.take(len(nodeID{})))
		e.hears = r.byte()&flagHears != 0
		e.nonce = r.uint32()
	}
	m.heartbeat.VoidedClaim = string(r.take(int(r.byte())))
	if r.short {
		return nil, errShort
	}
	return m, nil
}

// A reader reads b from its beginning. Without enough bytes short is set, and it reads zeros.
type reader struct {
	b     []byte
	short bool
}

// take removes the next n bytes and returns them, n zeros if fewer are left.
func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.short, r.b = true, nil
		return make([]byte, n)
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }

func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }

func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
