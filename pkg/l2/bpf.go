package l2

import (
	"encoding/binary"
	"net/netip"

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
// Ethernet frames with ARP, which drops requests of hosts that are not among senders. It accepts
// replies, probes (requests whose sender is 0.0.0.0), and requests whose sender address is one of
// senders, and drops all other requests. IPv6 addresses in senders are ignored. If senders lie in
// more than maxBlocks blocks of 32 addresses it accepts everything.
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
	const request = 1
	filter := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: request, SkipTrue: 2},
		bpf.LoadAbsolute{Off: offSender, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		accept,
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(31)},
	}
	for first, which := range blocks {
		filter = append(filter,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: first, SkipTrue: 8}, // to the next block
			bpf.LoadAbsolute{Off: offSender, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 31},
			bpf.TAX{},
			bpf.LoadConstant{Dst: bpf.RegA, Val: which},
			bpf.ALUOpX{Op: bpf.ALUOpShiftRight},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 1, SkipTrue: 1},
			accept,
			drop,
		)
	}
	return append(filter, drop)
}
