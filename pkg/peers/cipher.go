package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A packet on the wire:
//
//	"HP" version(1) 0(1), key ID(4), process ID(16), sequence number(8)   in the clear, but authenticated
//	nonce(12), the message, tag(16)                                       AES-256-GCM
//
// Each process encrypts with a key of its own, derived (HKDF, RFC 5869) from the cluster's key and its process ID,
// and with random nonces: at most 20 a second, so that two are the same by chance in no process that ever ran.
const (
	processLen = len(vip.ProcessID{})
	nonceLen   = 12
	headerLen  = 4 + 4 + processLen + 8
	overhead   = nonceLen + 16
	version    = 1
	// maxPacket is what is read of a packet; longer ones are not authentic then.
	maxPacket  = 16 << 10
	maxSenders = 1024 // in sealer.receive; when there would be more all are removed
)

// A packetID is a packet's sender and its rising sequence number.
type packetID struct {
	process  vip.ProcessID
	sequence uint64
}

// A keyID identifies a key without revealing it.
type keyID [4]byte

func idOfKey(key []byte) keyID { return keyID(derive(key, nil, "herald peers: key id", len(keyID{}))) }

func (id keyID) String() string { return hex.EncodeToString(id[:]) }

// derive returns n bytes, 8160 at most, by HKDF with SHA-256.
func derive(key, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, salt, info, n)
	if err != nil {
		panic(err) // only if n is too large
	}
	return out
}

// newAEAD returns a process's AES-256-GCM under a key of the cluster.
func newAEAD(key []byte, process vip.ProcessID) cipher.AEAD {
	block, err := aes.NewCipher(derive(key, process[:], "herald peers: packets", 32))
	if err != nil {
		panic(err) // only if the length is wrong
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

// A sealer encrypts this process's packets and decrypts others'. Callers hold Peers.mu.
type sealer struct {
	last    packetID // the packet sealed last
	keys    [][]byte // of the cluster; the last one encrypts, all decrypt
	before  []byte   // the one that encrypted before, which decrypts, too
	send    cipher.AEAD
	ids     []keyID                // of keys, and of before
	receive map[sender]cipher.AEAD // of processes from which an authentic packet came
}

// A sender is a process and the key that it encrypts with.
type sender struct {
	key     keyID
	process vip.ProcessID
}

func newSealer(process vip.ProcessID) *sealer {
	return &sealer{last: packetID{process: process}, receive: make(map[sender]cipher.AEAD)}
}

// setKeys replaces the keys by copies. The one that encrypted still decrypts: others may read new ones later.
func (s *sealer) setKeys(keys [][]byte) {
	if slices.EqualFunc(keys, s.keys, slices.Equal) {
		return
	}
	if n := len(s.keys); n > 0 && (len(keys) == 0 || !slices.Equal(keys[len(keys)-1], s.keys[n-1])) {
		s.before = s.keys[n-1]
	}
	s.keys, s.ids = nil, nil
	for _, k := range keys {
		k = slices.Clone(k)
		s.keys, s.ids = append(s.keys, k), append(s.ids, idOfKey(k))
		s.send = newAEAD(k, s.last.process)
	}
	if s.before != nil {
		s.ids = append(s.ids, idOfKey(s.before))
	}
	clear(s.receive)
}

// seal returns a packet with message and the next sequence number; nil without a key.
func (s *sealer) seal(message []byte) []byte {
	if len(s.keys) == 0 {
		return nil
	}
	s.last.sequence++
	b := make([]byte, 0, headerLen+len(message)+overhead)
	b = append(b, 'H', 'P', version, 0)
	b = append(b, s.ids[len(s.keys)-1][:]...)
	b = append(b, s.last.process[:]...)
	b = binary.BigEndian.AppendUint64(b, s.last.sequence)
	return s.send.Seal(b, nil, message, b)
}

// Why a packet can't be opened.
var (
	errFormat    = errors.New("not a packet of Herald, or of an unknown version")
	errKey       = errors.New("encrypted with an unknown key")
	errAuthentic = errors.New("not authentic: changed on its way, or made without the key")
)

// open decrypts a packet into new memory, without a look for replays: errFormat, errKey or errAuthentic.
func (s *sealer) open(packet []byte) (id packetID, message []byte, err error) {
	if len(packet) < headerLen+overhead || packet[0] != 'H' || packet[1] != 'P' || packet[2] != version {
		return id, nil, errFormat
	}
	from := sender{keyID(packet[4:8]), vip.ProcessID(packet[8 : 8+processLen])}
	id = packetID{from.process, binary.BigEndian.Uint64(packet[8+processLen:])}
	i := slices.Index(s.ids, from.key)
	if i < 0 {
		return id, nil, errKey
	}
	aead, known := s.receive[from]
	if !known {
		key := s.before
		if i < len(s.keys) {
			key = s.keys[i]
		}
		aead = newAEAD(key, from.process)
	}
	message, err = aead.Open(nil, nil, packet[headerLen:], packet[:headerLen])
	if err != nil {
		return id, nil, errAuthentic
	}
	if !known {
		if len(s.receive) >= maxSenders {
			clear(s.receive)
		}
		s.receive[from] = aead
	}
	return id, message, nil
}
