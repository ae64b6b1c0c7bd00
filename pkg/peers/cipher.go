package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A packet on the wire:
//
//	"HP" version(1) 0(1), key ID(4), process ID(16), sequence number(8), nonce(12)   in the clear, but authenticated
//	the message                                                                       AES-256-GCM
//
// Each process encrypts with a key of its own, derived (HKDF, RFC 5869) from the cluster's key and
// its process ID. The AEAD nonce (RFC 5116) is derived from the sequence number and the message,
// so that two messages never share one: not even if a virtual machine is restored from a
// snapshot of its memory, and counts from an earlier number on (docs/why.md, "Heartbeats").
const (
	processLen = len(vip.ProcessID{})
	nonceLen   = 12
	headerLen  = 4 + 4 + processLen + 8 + nonceLen
	tagLen     = 16
	version    = 1
	minPacket  = headerLen + tagLen
	// maxPacket is what is read of a packet. Longer ones are not authentic then.
	maxPacket  = 16 << 10
	maxSenders = 1024 // in sealer.receive; when there would be more all are removed
)

// A packetID is a packet's sender and its sequence number, which rises with each packet.
type packetID struct {
	process  vip.ProcessID
	sequence uint64
}

// A keyID identifies a key without revealing it.
type keyID [4]byte

// idOfKey returns the ID of a key: 4 bytes derived from it, which do not reveal it.
func idOfKey(key []byte) keyID { return keyID(derive(key, nil, "herald peers: key id", len(keyID{}))) }

// String returns the ID in hexadecimal.
func (id keyID) String() string { return hex.EncodeToString(id[:]) }

// KeyID returns a text of 8 characters that identifies a key without revealing it.
func KeyID(key []byte) string { return idOfKey(key).String() }

// derive returns n bytes derived from key by HKDF with SHA-256. It panics if n is more than
// 8160.
func derive(key, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, salt, info, n)
	if err != nil {
		panic(err) // only if n is too large
	}
	return out
}

// newAEAD returns the AES-256-GCM with which a process, named by its process ID, encrypts
// under a key of the cluster: its own key is derived from both.
func newAEAD(key []byte, process vip.ProcessID) cipher.AEAD {
	block, err := aes.NewCipher(derive(key, process[:], "herald peers: packets", 32))
	if err != nil {
		panic(err) // only if the length is wrong
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

// A sealer encrypts this process's packets and decrypts those of others. Only one goroutine
// at a time may use it: callers hold Peers.mu.
type sealer struct {
	last    packetID // the packet sealed last
	keys    [][]byte // of the cluster
	ids     []keyID  // of keys
	send    []sealKey
	receive map[sender]cipher.AEAD // of processes from which an authentic packet came
}

// A sealKey is what packets are encrypted with under one of the cluster's keys: the key of this
// process, and the secret that makes their nonces unpredictable.
type sealKey struct {
	aead        cipher.AEAD
	nonceSecret []byte
}

// A sender is a process and the key that it encrypts with.
type sender struct {
	key     keyID
	process vip.ProcessID
}

// newSealer returns a sealer for the process with that process ID, without a key of the
// cluster.
func newSealer(process vip.ProcessID) *sealer {
	return &sealer{last: packetID{process: process}, receive: make(map[sender]cipher.AEAD)}
}

// setKeys replaces the keys of the cluster by copies of these. Packets under others can't be
// opened any more. If the keys are the same as before it does nothing; the sequence number
// goes on in any case.
func (s *sealer) setKeys(keys [][]byte) {
	if slices.EqualFunc(keys, s.keys, slices.Equal) {
		return
	}
	s.keys, s.ids, s.send = nil, nil, nil
	for _, k := range keys {
		k = slices.Clone(k)
		s.keys, s.ids, s.send = append(s.keys, k), append(s.ids, idOfKey(k)), append(s.send, sealKey{newAEAD(k, s.last.process), derive(k, s.last.process[:], "herald peers: nonces", 32)})
	}
	clear(s.receive)
}

// seal returns a packet with message, encrypted with the key at that index of s.keys, under
// the next sequence number, which it stores. It returns nil if there is no such key.
func (s *sealer) seal(message []byte, key int) []byte {
	if key >= len(s.keys) {
		return nil
	}
	s.last.sequence++
	b := make([]byte, 0, headerLen+len(message)+tagLen)
	b = append(b, 'H', 'P', version, 0)
	b = append(b, s.ids[key][:]...)
	b = append(b, s.last.process[:]...)
	b = binary.BigEndian.AppendUint64(b, s.last.sequence)
	nonce := newNonce(s.send[key].nonceSecret, b, message)
	b = append(b, nonce...)
	return s.send[key].aead.Seal(b, nonce, message, b[:headerLen])
}

// newNonce returns the nonce (RFC 5116) of a packet: the beginning of the HMAC-SHA-256 of its
// header, up to the sequence number, and its message. Another message has another nonce.
func newNonce(secret, header, message []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(header)
	mac.Write(message)
	return mac.Sum(nil)[:nonceLen]
}

// Why a packet can't be opened.
var (
	errFormat    = errors.New("not a packet of Herald, or of an unknown version")
	errKey       = errors.New("encrypted with an unknown key")
	errAuthentic = errors.New("not authentic: changed on its way, or made without the key")
)

// open decrypts a packet and returns its sender with its sequence number, and the message,
// which shares no memory with the packet. It returns a nil message and errFormat, errKey (not
// one of s.keys) or errAuthentic if it can't. It does not look for replays. The cipher of a
// sender whose packet was authentic is stored for the next one.
func (s *sealer) open(packet []byte) (id packetID, message []byte, err error) {
	if len(packet) < minPacket || packet[0] != 'H' || packet[1] != 'P' || packet[2] != version {
		return id, nil, errFormat
	}
	from := sender{keyID(packet[4:8]), vip.ProcessID(packet[8 : 8+processLen])}
	id = packetID{from.process, binary.BigEndian.Uint64(packet[8+processLen:])}
	key := slices.Index(s.ids, from.key)
	if key < 0 {
		return id, nil, errKey
	}
	aead, known := s.receive[from]
	if !known {
		aead = newAEAD(s.keys[key], from.process)
	}
	message, err = aead.Open(nil, packet[headerLen-nonceLen:headerLen], packet[headerLen:], packet[:headerLen])
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
