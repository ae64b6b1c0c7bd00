package peers

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// BenchmarkHear is what a packet costs its receiver among 100 nodes, without the
// system call. Each node hears 400 of them a second.
func BenchmarkHear(b *testing.B) {
	key := [][]byte{bytes.Repeat([]byte{1}, 32)}
	p := New(Options{Node: "n0"})
	p.seal.use(key)
	now := time.Now()
	p.table.late(now)
	nodes := make(map[string]netip.AddrPort)
	for i := range 100 {
		nodes[fmt.Sprintf("n%d", i)] = netip.AddrPort{}
	}
	p.table.know(nodes, now)
	m := &message{from: "n1", period: p.table.period, echoes: make([]echo, 99)}
	other := newSealer(bootID{1})
	other.use(key)
	packet := other.seal(m.append(nil), 0)
	for b.Loop() {
		p.hear(packet, netip.AddrPort{})
	}
}
