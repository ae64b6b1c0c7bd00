package peers

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// gatewayRefresh is the age of an answer from which on Liveness asks again.
	gatewayRefresh = 500 * time.Millisecond
	// gatewayMaxAge is the age up to which Liveness returns an answer.
	gatewayMaxAge = 2 * time.Second
)

// GatewayOptions of a Gateway.
type GatewayOptions struct {
	// Address is this node's default gateway on the link of VIPs; zero if it has none.
	Address func() netip.Addr
	// Answers is as in Options.
	Answers func(ctx context.Context, a netip.Addr) bool
	// Poke is called after each question; must not block.
	Poke func()
}

// A Gateway checks whether the default gateway on the link of VIPs answers. Of two halves of
// a cluster that can't see each other, only the one that reaches it may take VIPs over.
type Gateway struct {
	o      GatewayOptions
	askNow mailbox.Signal
	last   atomic.Pointer[gatewayAnswer]
}

// A gatewayAnswer is what a gateway was found to be at some time.
type gatewayAnswer struct {
	liveness vip.Liveness // Alive, Dead, or Unknown: there is no gateway
	asked    time.Time
	at       time.Time // when the answer came, or was given up
}

// NewGateway makes a Gateway that asks nothing before Run; until then Liveness returns Unknown.
func NewGateway(o GatewayOptions) *Gateway {
	g := &Gateway{o: o, askNow: mailbox.NewSignal()}
	g.last.Store(&gatewayAnswer{})
	return g
}

// String names the task.
func (g *Gateway) String() string { return "gateway" }

// Liveness returns whether the gateway answered when it was asked last; Unknown if there is none, or it was asked
// before since or too long ago. It has Run ask again, and does not block.
func (g *Gateway) Liveness(since time.Time) vip.Liveness {
	last := g.last.Load()
	old := last.asked.Before(since)
	if old || time.Since(last.at) > gatewayRefresh {
		g.askNow.Send()
	}
	if old || time.Since(last.at) > gatewayMaxAge {
		return vip.Unknown
	}
	return last.liveness
}

// Run asks the gateway each time Liveness found the last answer too old, until ctx ends, and stores the answer.
func (g *Gateway) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.askNow:
		}
		answer, asked := vip.Unknown, time.Now()
		if address := g.o.Address(); address.IsValid() {
			answer = vip.Dead
			if g.o.Answers(ctx, address) {
				answer = vip.Alive
			}
		}
		g.last.Store(&gatewayAnswer{answer, asked, time.Now()})
		g.o.Poke()
	}
}
