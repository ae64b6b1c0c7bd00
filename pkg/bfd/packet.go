package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// A State is the state of a session (RFC 5880 section 4.1).
type State uint8

// The states, by their numbers in a packet.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String is the state in lower case, as metrics and pages show it.
func (s State) String() string {
	return [...]string{"admin down", "down", "init", "up"}[s&3]
}

// Diagnostic codes (RFC 5880 section 4.1).
const (
	diagNone         = 0
	diagTimeExpired  = 1
	diagNeighborDown = 3
	diagAdminDown    = 7
)

const (
	version      = 1
	packetLength = 24 // bytes, without an authentication section

	flagPoll       = 1 << 5
	flagFinal      = 1 << 4
	flagAuth       = 1 << 2
	flagMultipoint = 1
)

// A packet is a BFD Control packet without authentication (RFC 5880 section 4.1).
type packet struct {
	diag          uint8
	state         State
	poll          bool
	final         bool
	multiplier    uint8
	mine, yours   uint32 // discriminators
	desiredMinTx  time.Duration
	requiredMinRx time.Duration
}

// marshal writes the packet. Intervals are whole microseconds of 32 bits.
func (p packet) marshal() []byte {
	b := make([]byte, packetLength)
	b[0], b[1], b[2], b[3] = version<<5|p.diag&31, byte(p.state)<<6, p.multiplier, packetLength
	if p.poll {
		b[1] |= flagPoll
	}
	if p.final {
		b[1] |= flagFinal
	}
	for i, v := range []uint32{p.mine, p.yours, uint32(p.desiredMinTx / time.Microsecond),
		uint32(p.requiredMinRx / time.Microsecond)} {
		binary.BigEndian.PutUint32(b[4+4*i:], v)
	}
	return b // the last four bytes are Required Min Echo RX Interval: none are taken
}

// parsePacket reads a packet, and refuses what no session may look at (RFC 5880 section 6.8.6, up to the choice of a
// session). What follows its own length, Demand mode and echo packets are ignored.
func parsePacket(b []byte) (packet, error) {
	if len(b) < packetLength {
		return packet{}, fmt.Errorf("%d bytes are no BFD packet", len(b))
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4+4*i:]) }
	p := packet{
		diag: b[0] & 31, state: State(b[1] >> 6), poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0, multiplier: b[2],
		mine: word(0), yours: word(1),
		desiredMinTx: time.Duration(word(2)) * time.Microsecond, requiredMinRx: time.Duration(word(3)) * time.Microsecond,
	}
	switch {
	case b[0]>>5 != version:
		return packet{}, fmt.Errorf("version %d", b[0]>>5)
	case b[1]&flagAuth != 0:
		return packet{}, errors.New("it is authenticated, and no authentication is configured")
	case b[3] < packetLength || int(b[3]) > len(b):
		return packet{}, fmt.Errorf("length %d of %d", b[3], len(b))
	case p.multiplier == 0:
		return packet{}, errors.New("its Detect Mult is 0")
	case b[1]&flagMultipoint != 0:
		return packet{}, errors.New("its Multipoint bit is set")
	case p.mine == 0:
		return packet{}, errors.New("its My Discriminator is 0")
	case p.yours == 0 && p.state > Down:
		return packet{}, fmt.Errorf("its Your Discriminator is 0 in the state %v", p.state)
	}
	return p, nil
}
