package l2

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A junkNetwork is one on which a host sends, a million times a second, what is no message.
type junkNetwork struct {
	network
	read  int
	once  sync.Once
	ended chan struct{}
}

func (n *junkNetwork) openReceiver(vip.Link, vip.Family) (messageReceiver, error) { return n, nil }
func (n *junkNetwork) Close() error                                               { n.once.Do(func() { close(n.ended) }); return nil }

func (n *junkNetwork) receive() (m neighborMessage, ok bool, err error) {
	select {
	case <-n.ended:
		return m, false, net.ErrClosed
	case <-time.After(time.Microsecond):
		n.read++
		return m, false, nil
	}
}

// TestFloodOfJunk: what can't be read counts for what is read in a second.
func TestFloodOfJunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &junkNetwork{ended: make(chan struct{})}
		a := newAnnouncer(Options{Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeNow: func() {}}, n)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.receive(ctx, &receiver{}, vip.Link{Name: "eth0"}, vip.IPv4) }()
		began := time.Now()
		time.Sleep(10 * time.Second)
		stop()
		<-done
		if n.read < 9*readsPerSecond || n.read > 11*readsPerSecond || !a.heard.floodedSince("eth0", began) {
			t.Errorf("%d were read in ten seconds", n.read)
		}
	})
}
