package peers

import (
	"encoding/binary"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"golang.org/x/net/bpf"
)

const (
	// readsPerSecond is how many packets are read, so that a flood of them costs some hundredths of a core.
	// 100 nodes send 400 a second, and twice as many when much changes.
	readsPerSecond = 4000
	// filterTime is how long the kernel drops packets without the ID of a key after a flood. Then they are
	// read again: they may be of a node that has another key, which is worth a message.
	filterTime = 10 * time.Second
)

// A floodGuard bounds what packets of other hosts cost: it reads readsPerSecond of them at most. While
// there are more, the kernel is told to drop those that do not name one of this node's keys, so that
// heartbeats are not lost among them. It belongs to the goroutine that reads the socket.
type floodGuard struct {
	limit      mailbox.Limit
	filteredAt time.Time // when the kernel's filter was set; zero: there is none
}

// A packetFilter is a Socket whose kernel can drop packets before they are read.
type packetFilter interface {
	// setFilter has the kernel drop packets that name none of these keys, or none with nil.
	setFilter(ids []keyID) error
}

// packetRead counts a packet that was read, waits up to 0.1 s if there are too many, and sets the kernel's filter, or
// takes it off.
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

// keyFilter returns a classic BPF program for a UDP socket, whose packets begin with the UDP header. It accepts those
// that name one of the keys, or all if there are no ids.
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
