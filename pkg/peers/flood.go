package peers

import (
	"encoding/binary"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"golang.org/x/net/bpf"
)

const (
	// readsPerSecond is how many packets are read, for a flood to cost little: 100 nodes send 400 a second, or twice that.
	readsPerSecond = 4000
	// filterTime is how long after a flood the kernel drops packets; then other keys, worth a message, are read again.
	filterTime = 10 * time.Second
)

// A floodGuard reads readsPerSecond packets at most. In a flood the kernel drops those that name none of this node's
// keys, so that heartbeats are not lost. It belongs to the goroutine that reads.
type floodGuard struct {
	limit      mailbox.Limit
	filteredAt time.Time // when the kernel's filter was set; zero: there is none
}

// A packetFilter is a Socket whose kernel can drop packets before they are read.
type packetFilter interface {
	// setFilter has the kernel drop packets that name none of these keys, or none with nil.
	setFilter(ids []keyID) error
}

// packetRead counts a packet, waits up to 0.1 s if there are too many, and sets or removes the kernel's filter.
func (g *floodGuard) packetRead(socket Socket, ids func() []keyID) {
	waited := g.limit.Read()
	filter, ok := socket.(packetFilter)
	switch {
	case !ok:
	case waited && g.filteredAt.IsZero():
		if filter.setFilter(ids()) == nil {
			g.filteredAt = time.Now()
		}
	case !g.filteredAt.IsZero() && time.Since(g.filteredAt) > filterTime:
		if filter.setFilter(nil) == nil {
			g.filteredAt = time.Time{}
		}
	}
}

// keyFilter returns classic BPF for a UDP socket, from the UDP header, that accepts these keys, or all without ids.
func keyFilter(ids []keyID) ([]bpf.RawInstruction, error) {
	const udp = 8
	accept, drop := bpf.RetConstant{Val: 1 << 16}, bpf.RetConstant{Val: 0}
	if len(ids) == 0 {
		return bpf.Assemble([]bpf.Instruction{accept})
	}
	filter := []bpf.Instruction{
		bpf.LoadAbsolute{Off: udp, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 'H'<<24 | 'P'<<16 | version<<8, SkipTrue: 1},
		drop,
		bpf.LoadAbsolute{Off: udp + 4, Size: 4},
	}
	for _, id := range ids {
		filter = append(filter, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(id[:]), SkipTrue: 1}, accept)
	}
	return bpf.Assemble(append(filter, drop))
}
