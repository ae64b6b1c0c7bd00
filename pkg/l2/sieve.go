package l2

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/net/bpf"
)

// On a link with many hosts and VIPs most of what is said concerns this node not at all:
// hosts ask for each other, and each VIP is announced to everybody. Each such frame
// would wake the process up, so the kernel leaves them out.

// A listener is an ear that is in use.
type listener struct {
	hearing
	ear    ear
	narrow bool // it has a sieve
	failed bool // the kernel did not take one
}

// sift has ears hear no more than they must, once what is wanted has been the same for
// so long that all that matters of it is known. While nobody is heard they hear
// everything: it takes any word to know that the link works. a.mu is held.
func (a *Announcer) sift(now time.Time) {
	for l := range a.listeners {
		narrow := now.Sub(a.changed) > afterglow && now.Sub(a.ears.noisy(l.link)) < quietLink/4
		if narrow == l.narrow || narrow && l.failed {
			continue
		}
		var only []netip.Addr
		if narrow {
			only = a.concern(l.hearing)
		}
		if err := l.ear.sift(narrow, only); err != nil {
			l.failed = true
			a.log.Debug("the kernel does not leave out what others say on a link", "link", l.link, "family", l.family, "err", err)
			continue
		}
		l.narrow = narrow
	}
}

// concern is the addresses of which each word matters that is heard by h. a.mu is held.
func (a *Announcer) concern(h hearing) []netip.Addr {
	var list []netip.Addr
	for t := range a.speech {
		if t.link == h.link && vip.FamilyOf(t.addr) == h.family {
			list = append(list, t.addr)
		}
	}
	for t := range a.heeded {
		if t.link == h.link && vip.FamilyOf(t.addr) == h.family {
			list = append(list, t.addr)
		}
	}
	return list
}

// unsettle has ears hear everything: what is wanted is about to change. a.mu is held.
func (a *Announcer) unsettle(now time.Time) {
	a.changed = now
	a.sift(now)
}

// heed has every word about t heard until the returned function is called.
func (a *Announcer) heed(t topic, now time.Time) (stop func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.heeded[t]++; a.heeded[t] == 1 && a.speech[t] == nil {
		a.unsettle(now)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.heeded[t]--; a.heeded[t] == 0 {
			delete(a.heeded, t)
		}
	}
}

// Where the fields of ARP are in an Ethernet frame (RFC 826).
const (
	offOperation = 14 + 6
	offSender    = 14 + 14 // the protocol address
)

// pass and drop end a filter: how much of the frame is handed over.
var (
	pass = bpf.RetConstant{Val: 1 << 16}
	drop = bpf.RetConstant{Val: 0}
)

// everything is the filter that leaves nothing out.
var everything = []bpf.Instruction{pass}

// mostBlocks is how many blocks a sieve can have: classic BPF allows 4096 instructions.
const mostBlocks = 350

// sieve is a filter (Documentation/networking/filter.rst of Linux) for ARP frames. It
// lets pass what is no request, since that is an answer or an owner's word; probes, whose
// sender is 0.0.0.0; and what a host sends as one of addrs. Only IPv4 addresses count.
// Of more than mostBlocks blocks of addresses it lets pass everything.
func sieve(addrs []netip.Addr) []bpf.Instruction {
	blocks := map[uint32]uint32{} // by the first 27 bits: which of the 32 addresses
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			n := binary.BigEndian.Uint32(a.AsSlice())
			blocks[n&^31] |= 1 << (n & 31)
		}
	}
	if len(blocks) > mostBlocks {
		return everything
	}
	var list []block
	for first, which := range blocks {
		list = append(list, block{first, which})
	}
	slices.SortFunc(list, func(x, y block) int { return int(int64(x.first) - int64(y.first)) })
	const request = 1
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offOperation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: request, SkipTrue: 2},
		bpf.LoadAbsolute{Off: offSender, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		pass,
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(31)},
	}, search(list)...)
}

// A block is some of 32 addresses.
type block struct{ first, which uint32 }

// search goes on with the block of the sender in A.
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
			pass,
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
