package peers

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// BenchmarkHandlePacket is the time that a packet takes its receiver with 100 nodes, without the
// system call. Each node receives 400 of them a second.
func BenchmarkHandlePacket(b *testing.B) {
	key := [][]byte{bytes.Repeat([]byte{1}, 32)}
	p := New(Options{Node: "n0", Poke: func() {}})
	p.sealer.setKeys(key)
	now := time.Now()
	p.detector.startListening(now)
	nodes := make(map[string]netip.AddrPort)
	for i := range 100 {
		nodes[fmt.Sprintf("n%d", i)] = netip.AddrPort{}
	}
	p.detector.setNodes(nodes, now)
	m := &message{from: "n1", interval: p.detector.interval, echoes: make([]echo, 99)}
	other := newSealer([16]byte{1})
	other.setKeys(key)
	packet := other.seal(m.append(nil))
	for b.Loop() {
		p.handlePacket(packet, netip.AddrPort{})
	}
}
