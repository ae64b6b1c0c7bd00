package nft

import (
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// A family is what differs between the tables of IPv4 and IPv6.
type family struct {
	name        string // as nft(8) has it
	id          nftables.TableFamily
	addr        nftables.SetDatatype
	destination uint32 // where the network header has the destination address, in octets
	hopLimit    uint32 // and the hop limit (TTL)
	is4         bool
}

// families is the families of VIPs.
var families = []family{
	{"ip", nftables.TableFamilyIPv4, nftables.TypeIPAddr, 16, 8, true},    // RFC 791, section 3.1
	{"ip6", nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 24, 7, false}, // RFC 8200, section 3
}

// of returns those of all whose VIP is of the family.
func (f family) of(all []vip.FormerOwner) (found []vip.FormerOwner) {
	for _, x := range all {
		if x.Addr.Is4() == f.is4 {
			found = append(found, x)
		}
	}
	return found
}

// table is Herald's table of the family.
func (f family) table() *nftables.Table {
	return &nftables.Table{Family: f.id, Name: "herald"}
}

// set is the map of the family's table: from a VIP and the link on which packets to it arrive
// to the next hop.
func (f family) set() *nftables.Set {
	return &nftables.Set{
		Table: f.table(), Name: "former_owners", IsMap: true, HasTimeout: true, Timeout: Timeout, Concatenation: true,
		KeyType: nftables.MustConcatSetType(f.addr, nftables.TypeIFIndex), DataType: f.addr,
	}
}

// elements are the elements of the map for entries of the family. Entries on a link that is
// not there are left out, and so is a second one for the same VIP and link.
func (f family) elements(entries []vip.FormerOwner) []nftables.SetElement {
	var all []nftables.SetElement
	type key struct {
		addr  string
		index int
	}
	seen := make(map[key]bool)
	index := make(map[string]int)
	for _, x := range entries {
		i, ok := index[x.Link]
		if !ok {
			if link, err := net.InterfaceByName(x.Link); err == nil {
				i = link.Index
			}
			index[x.Link] = i
		}
		k := key{string(x.Addr.AsSlice()), i}
		if i == 0 || seen[k] {
			continue
		}
		seen[k] = true
		all = append(all, nftables.SetElement{
			Key: append(x.Addr.AsSlice(), binaryutil.NativeEndian.PutUint32(uint32(i))...),
			Val: x.NextHop.AsSlice(),
		})
	}
	return all
}

// The registers of the rule: each holds 16 octets. A key of an IPv4 address and a link is
// packed into the first, in parts of 4 octets.
const (
	first  = unix.NFT_REG_1
	second = unix.NFT_REG_2
	part2  = unix.NFT_REG32_01 // the second part of the first
)

// build adds the family's table, with its chain, rule and an empty map (see the package
// comment) to the transaction.
func (f family) build(c *nftables.Conn) error {
	table, set := c.AddTable(f.table()), f.set()
	if err := c.AddSet(set, nil); err != nil {
		return err
	}
	link := uint32(second)
	if f.is4 {
		link = part2
	}
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: "established", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(-150), // after conntrack, before translation
	})
	unknown := f.matchUnknown(set, link)
	network := expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.hopLimit, Len: 1}
	read, write := network, network
	read.DestRegister = second
	write.OperationType, write.SourceRegister = expr.PayloadWrite, second
	if f.is4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10 // of the header (RFC 791, section 3.1)
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(slices.Clone(unknown),
		&read,
		&expr.Cmp{Op: expr.CmpOpGt, Register: second, Data: []byte{maxHops}},
		&expr.Immediate{Register: second, Data: []byte{maxHops}},
		&write,
	)})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(slices.Clone(unknown),
		&read,
		&expr.Cmp{Op: expr.CmpOpGt, Register: second, Data: []byte{1}},
		&expr.Counter{},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: second},
		&expr.Dup{RegAddr: first, RegDev: second, IsRegDevSet: true},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)})
	return nil
}

// matchUnknown matches packets to a VIP with an entry of a TCP connection that this node does not know, and puts the next
// hop into the register first. link is the register of the part of the key that is the link.
func (f family) matchUnknown(set *nftables.Set, link uint32) []expr.Any {
	known := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Ct{Key: expr.CtKeySTATE, Register: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: known, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: make([]byte, 4)},
		// The flags, octet 13 of the TCP header (RFC 9293, section 3.1): FIN 1, SYN 2, RST 4, ACK 16.
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{2 | 4 | 16}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: []byte{2}}, // no SYN alone, which begins a connection here
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.addr.Bytes, DestRegister: first},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: link},
		&expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID, DestRegister: first, IsDestRegSet: true},
	}
}

// maxHops is the TTL (hop limit) that a packet has left at most when it is first sent on: enough for all former owners of a VIP
// (8, pkg/lease) and the way to a Pod, and what a packet is sent to and fro at most where nodes name each other.
const maxHops = 16
