package nft

import (
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A family is what differs between tables of IPv4 and IPv6.
type family struct {
	name        string // as nft(8) has it
	id          nftables.TableFamily
	addr        nftables.SetDatatype
	source      uint32 // where the network header has the source address, in octets
	destination uint32 // where the network header has the destination address
	hopLimit    uint32 // and the hop limit (TTL)
	is4         bool
}

var families = []family{
	{"ip", nftables.TableFamilyIPv4, nftables.TypeIPAddr, 12, 16, 8, true},   // RFC 791, section 3.1
	{"ip6", nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 8, 24, 7, false}, // RFC 8200, section 3
}

// Registers of 16 octets; a key of several parts begins in the first.
const (
	first  = unix.NFT_REG_1
	second = unix.NFT_REG_2
	third  = unix.NFT_REG_3

	secondPart = unix.NFT_REG32_01 // of a key whose first part has 4 octets
)

// part returns the register of a part of a key that begins at first with an address.
func (f family) part(n uint32) uint32 { return unix.NFT_REG32_00 + f.addr.Bytes/4 + n - 1 }

// setOf describes a set with a timeout; several parts are concatenated.
func (f family) setOf(name string, parts ...nftables.SetDatatype) *nftables.Set {
	set := &nftables.Set{Name: name, HasTimeout: true, Timeout: Timeout, KeyType: parts[0]}
	if len(parts) > 1 {
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(parts...), true
	}
	return set
}

// mapOf describes a map with a timeout, from an address and more to an address.
func (f family) mapOf(name string, parts ...nftables.SetDatatype) *nftables.Set {
	set := f.setOf(name, append([]nftables.SetDatatype{f.addr}, parts...)...)
	set.IsMap, set.DataType = true, f.addr
	return set
}

func (f family) table(name string) *nftables.Table {
	return &nftables.Table{Family: f.id, Name: name}
}

// addChain adds a chain, and returns what adds a rule to it.
func addChain(c *nftables.Conn, chain nftables.Chain) (add func(exprs ...expr.Any)) {
	c.AddChain(&chain)
	return func(exprs ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: chain.Table, Chain: &chain, Exprs: exprs})
	}
}

func matchTCP() []expr.Any { return matchProtocol(unix.IPPROTO_TCP) }

func matchProtocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{number}},
	}
}

// matchReplies matches packets of the direction that answers.
func matchReplies() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{1}}}
}

// matchBits matches packets if load puts any of the bits (CmpOpNeq), or none (CmpOpEq), into the register first.
func matchBits(load expr.Any, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits),
			Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: first, Data: make([]byte, 4)},
	}
}

// matchState is matchBits of conntrack's state.
func matchState(bits uint32, op expr.CmpOp) []expr.Any {
	return matchBits(&expr.Ct{Key: expr.CtKeySTATE, Register: first}, bits, op)
}

// matchFlags matches TCP packets if those of the flags that they have are equal, or not, to only (RFC 9293, section
// 3.1: FIN 1, SYN 2, RST 4, ACK 16 of octet 13).
func matchFlags(flags byte, op expr.CmpOp, only byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{flags}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: first, Data: []byte{only}},
	}
}

// in matches packets if the set has what is in the register first; notIn, if not.
func in(set *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID}
}

func notIn(set *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID, Invert: true}
}

// loadDestination puts the destination address into the register first.
func (f family) loadDestination() *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.addr.Bytes,
		DestRegister: first}
}

// loadDestinationPort loads a TCP packet's destination port (RFC 9293, section 3.1).
func loadDestinationPort(register uint32) *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: register}
}

// lookUp replaces the key in the register first by its value; others don't match.
func lookUp(set *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID, DestRegister: first, IsDestRegSet: true}
}

func portPart(port uint16) []byte { return append(binaryutil.BigEndian.PutUint16(port), 0, 0) }

// A linkIndexes finds the index of a link by its name, each once.
type linkIndexes map[string]int

// part returns the part of a key that is a link; false without it.
func (all linkIndexes) part(name string) ([]byte, bool) {
	i, known := all[name]
	if !known {
		if link, err := net.InterfaceByName(name); err == nil {
			i = link.Index
		}
		all[name] = i
	}
	return binaryutil.NativeEndian.PutUint32(uint32(i)), i != 0
}
