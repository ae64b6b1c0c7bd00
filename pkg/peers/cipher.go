package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

// A packet is, on the wire:
//
//	"HP" version(1) 0(1), key ID(4), boot(16), number(8)   in the clear, but authenticated
//	the message                                              AES-256-GCM
//
// Each process seals with a key of its own, derived (RFC 5869) from the
// cluster's key and a random number it drew at its start, and counts its packets.
// So no nonce is used twice, and nothing has to be remembered across restarts.
const (
	bootLen   = 16
	headLen   = 4 + 4 + bootLen + 8
	tagLen    = 16
	version   = 1
	minPacket = headLen + tagLen
	// maxPacket is what is read of a packet. Larger ones are nobody's.
	maxPacket = 16 << 10
)

// A bootID is the random number that a process drew at its start.
type bootID [bootLen]byte

// A keyID tells keys apart without telling the key.
type keyID [4]byte

// idOfKey derives the ID of a key.
func idOfKey(key []byte) (id keyID) {
	copy(id[:], derive(key, nil, "herald peers: key id", len(id)))
	return id
}

func derive(key, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, salt, info, n)
	if err != nil {
		panic(err) // only if n is too large
	}
	return out
}

// aeadOf is the cipher by which the process boot seals with key.
func aeadOf(key []byte, boot bootID) cipher.AEAD {
	block, err := aes.NewCipher(derive(key, boot[:], "herald peers: packets", 32))
	if err != nil {
		panic(err) // only if the length is wrong
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

// A sealer seals this process's packets and opens those of others.
type sealer struct {
	boot bootID

	mu     sync.Mutex // guards all below
	number uint64     // of the last packet sealed
	keys   [][]byte   // as set
	ids    []keyID    // theirs
	own    []cipher.AEAD
	others map[other]cipher.AEAD // made once for each process that sent something good
}

// An other is a process, and the key it seals with.
type other struct {
	key  keyID
	boot bootID
}

// maxOthers bounds what is remembered of processes that are gone.
const maxOthers = 1024

func newSealer(boot bootID) *sealer {
	return &sealer{boot: boot, others: make(map[other]cipher.AEAD)}
}

// use takes over the keys. Those that were not among them are forgotten.
func (s *sealer) use(keys [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(keys, s.keys, slices.Equal) {
		return
	}
	s.keys, s.ids, s.own = nil, nil, nil
	for _, k := range keys {
		k = slices.Clone(k)
		s.keys, s.ids, s.own = append(s.keys, k), append(s.ids, idOfKey(k)), append(s.own, aeadOf(k, s.boot))
	}
	clear(s.others)
}

// known is the IDs of all keys, in their order.
func (s *sealer) known() []keyID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids
}

// seal makes a packet of a message, by the key which, an index of known.
func (s *sealer) seal(message []byte, which int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if which >= len(s.own) {
		return nil // the keys have changed
	}
	s.number++
	b := make([]byte, 0, headLen+len(message)+tagLen)
	b = append(b, 'H', 'P', version, 0)
	b = append(b, s.ids[which][:]...)
	b = append(b, s.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, s.number)
	return s.own[which].Seal(b, nonce(b), message, b[:headLen])
}

// nonce is that of a packet: its number, which no other packet of the process has.
func nonce(packet []byte) []byte {
	n := make([]byte, 12)
	copy(n[4:], packet[headLen-8:headLen])
	return n
}

// Why a packet can't be opened.
var (
	errForeign = errors.New("not a packet of Herald, or of a version that is not known")
	errKey     = errors.New("sealed with a key that is not known here")
	errForged  = errors.New("not made by who has the key")
)

// open opens a packet. The message shares no memory with it.
func (s *sealer) open(packet []byte) (boot bootID, number uint64, message []byte, err error) {
	if len(packet) < minPacket || packet[0] != 'H' || packet[1] != 'P' || packet[2] != version {
		return boot, 0, nil, errForeign
	}
	id := keyID(packet[4:8])
	boot = bootID(packet[8 : 8+bootLen])
	number = binary.BigEndian.Uint64(packet[headLen-8:])
	who := other{id, boot}
	s.mu.Lock()
	at := slices.Index(s.ids, id)
	if at < 0 {
		s.mu.Unlock()
		return boot, 0, nil, errKey
	}
	key, aead := s.keys[at], s.others[who]
	s.mu.Unlock()
	fresh := aead == nil
	if fresh {
		aead = aeadOf(key, boot)
	}
	message, err = aead.Open(nil, nonce(packet), packet[headLen:], packet[:headLen])
	if err != nil {
		return boot, 0, nil, errForged
	}
	if fresh {
		s.mu.Lock()
		if len(s.others) >= maxOthers {
			clear(s.others)
		}
		s.others[who] = aead
		s.mu.Unlock()
	}
	return boot, number, message, nil
}
