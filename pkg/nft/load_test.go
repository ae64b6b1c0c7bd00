package nft

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Two hundred connections exchange lines without a pause while their VIP moves from n1 to n2: none breaks.
func TestTrafficThroughMove(t *testing.T) {
	r := newRig(t)
	tables := New(check.Log(t))
	r.move("n1")
	var done sync.WaitGroup
	end := make(chan struct{})
	var all []connection
	for range 200 {
		all = append(all, r.dial(vip4))
	}
	for _, c := range all {
		done.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					c.wants(t, "n1")
					time.Sleep(10 * time.Millisecond) // two cores
				}
			}
		})
	}
	r.set(tables, "n2", "n1")
	r.move("n2")
	r.dial(vip4).wants(t, "n2")
	before := packets(t, "n2")
	check.Until(t, 10*time.Second, "each connection has been sent on", func() error {
		if n := packets(t, "n2") - before; n < 400 {
			return fmt.Errorf("%d packets", n)
		}
		return nil
	})
	close(end)
	done.Wait()
}

// How fast a connection is that is sent on, by one node or by two.
func BenchmarkThroughput(b *testing.B) {
	for hops, name := range []string{"direct", "sent on", "sent on twice"} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b)
			inside(b, "n1", func() {
				l := check.Value(net.Listen("tcp", ":8081"))(b)
				b.Cleanup(func() { l.Close() })
				go func() {
					for c, err := l.Accept(); err == nil; c, err = l.Accept() {
						go func() { n, _ := io.Copy(io.Discard, c); fmt.Fprintln(c, n) }()
					}
				}()
			})
			sh(b, fmt.Sprintf("ip netns exec n1 nft add rule inet proxy pre ip daddr %s tcp dport 81 dnat ip to 10.0.0.1:8081", vip4))
			r.move("n1")
			c := check.Value(r.dialPort("client", vip4, 81))(b)
			log := check.Log(b)
			for i := range hops {
				node, former := fmt.Sprintf("n%d", i+2), fmt.Sprintf("n%d", i+1)
				r.set(New(log), node, former)
				r.move(node)
			}
			chunk := []byte(strings.Repeat("x", 1<<20))
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				check.Value(c.Write(chunk))(b)
			}
			check.OK(b, c.Conn.(*net.TCPConn).CloseWrite())
			if line := check.Value(c.in.ReadString('\n'))(b); line == "" { // all has arrived
				b.Error("no answer")
			}
		})
	}
}

// What a small packet costs that goes by a node: without a table of Herald, and with one, whose VIPs are others.
func BenchmarkRoundTrip(b *testing.B) {
	for entries, name := range map[int]string{0: "no VIP has moved", 1: "another VIP has moved", 5000: "5000 others have moved"} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b)
			r.move("n1")
			c := r.dial(vip4)
			var want []vip.FormerOwner
			for a := netip.MustParseAddr("10.1.0.0"); len(want) < entries; a = a.Next() {
				want = append(want, vip.FormerOwner{Addr: a, Link: "eth0", NextHop: own("n2")[0]})
			}
			inside(b, "n1", func() { check.Value(New(check.Log(b)).FormerOwners.Set(context.Background(), want))(b) })
			for b.Loop() {
				c.wants(b, "n1")
			}
		})
	}
}
