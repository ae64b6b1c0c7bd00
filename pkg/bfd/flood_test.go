package bfd

import (
	"net"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// TestFlood: of a flood in the name of a neighbor a bounded number of packets is read.
func TestFlood(t *testing.T) {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := check.Value(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer c.Close()
	var taken, sent atomic.Int64
	go read(c, func(received) { taken.Add(1) })
	from := check.Value(net.DialUDP("udp4", nil, c.LocalAddr().(*net.UDPAddr)))(t)
	defer from.Close()
	b := packet{state: Init, multiplier: 1, mine: 1, yours: 1}.marshal()
	began := time.Now()
	for ; time.Since(began) < time.Second; sent.Add(1) {
		_, _ = from.Write(b)
	}
	if n := taken.Load(); n < 100 || n > readsPerSecond*3/2 || sent.Load() < 4*readsPerSecond {
		t.Errorf("%d of %d packets were read in a second", n, sent.Load())
	}
}
