package l2

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
)

// Where the fields of ARP are in an Ethernet frame (RFC 826).
const (
	offOperation = 14 + 6
	offSender    = 14 + 14 // the protocol address
)

// accept and drop end a filter: how many bytes of the frame are handed over.
var (
	accept = bpf.RetConstant{Val: 1 << 16}
	drop   = bpf.RetConstant{Val: 0}
)

// acceptAll is the filter that drops nothing.
var acceptAll = []bpf.Instruction{accept}

// maxBlocks is how many blocks an arpFilter can have: classic BPF allows 4096 instructions.
const maxBlocks = 350

// arpFilter returns a classic BPF filter (Documentation/networking/filter.rst of Linux) for
// Ethernet frames with ARP. It accepts what is no request, probes (their sender is 0.0.0.0),
// and requests whose sender is one of senders, of which IPv6 addresses are ignored. If these
// lie in more than maxBlocks blocks of 32 it accepts everything.
func arpFilter(senders []netip.Addr) []bpf.Instruction {
	blocks := map[uint32]uint32{} // by the first 27 bits: which of the 32 addresses
	for _, a := range senders {
		if a = a.Unmap(); a.Is4() {
			n := binary.BigEndian.Uint32(a.AsSlice())
			blocks[n&^31] |= 1 << (n & 31)
		}
	}
	if len(blocks) > maxBlocks {
		return acceptAll
	}
	var list []block
	for first, which := range blocks {
		list = append(list, block{first, which})
	}
	slices.SortFunc(list, func(x, y block) int { return cmp.Compare(x.first, y.first) })
	const request = 1
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: request, SkipTrue: 2},
		bpf.LoadAbsolute{Off: offSender, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		accept,
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(31)},
	}, search(list)...)
}

// A block is some of the 32 addresses from first on: those whose bit is set in which.
type block struct{ first, which uint32 }

// search returns instructions that accept a frame if its sender is in one of the blocks, which
// are sorted, and else drop it. Register A holds the first 27 bits of the sender.
func search(list []block) []bpf.Instruction {
	switch n := len(list); n {
	case 0:
		return []bpf.Instruction{drop}
	case 1:
		return []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: list[0].first, SkipTrue: 7},
			bpf.LoadAbsolute{Off: offSender, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 31},
			bpf.TAX{},
			bpf.LoadConstant{Dst: bpf.RegA, Val: list[0].which},
			bpf.ALUOpX{Op: bpf.ALUOpShiftRight},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 1, SkipTrue: 1},
			accept,
			drop,
		}
	default:
		low, high := search(list[:n/2]), search(list[n/2:])
		head := []bpf.Instruction{ // a conditional jump can skip 255 instructions only
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: list[n/2].first, SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(low))},
		}
		return slices.Concat(head, low, high)
	}
}
