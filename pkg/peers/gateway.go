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
	// Poke is called when Liveness has changed because of an answer; must not block.
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
	at       time.Time
}

// NewGateway makes a Gateway that asks nothing before Run; until then Liveness returns
// Unknown.
func NewGateway(o GatewayOptions) *Gateway {
	g := &Gateway{o: o, askNow: mailbox.NewSignal()}
	g.last.Store(&gatewayAnswer{})
	return g
}

// String names the task.
func (g *Gateway) String() string { return "gateway" }

// Liveness returns Alive if the gateway answered when it was asked last, and Dead if it did
// not. It returns Unknown if there is no gateway, it was not asked yet, or that was more than
// 2 s (gatewayMaxAge) ago. It does not block or ask: if the answer is older than 0.5 s
// (gatewayRefresh) it has Run ask again.
func (g *Gateway) Liveness() vip.Liveness {
	last := g.last.Load()
	if time.Since(last.at) > gatewayRefresh {
		g.askNow.Send()
	}
	return last.current()
}

// current returns the stored Liveness, or Unknown if it is older than gatewayMaxAge.
func (a *gatewayAnswer) current() vip.Liveness {
	if time.Since(a.at) > gatewayMaxAge {
		return vip.Unknown
	}
	return a.liveness
}

// Run asks the gateway each time Liveness found the last answer too old, until ctx ends, and
// stores the answer: Unknown without a gateway address. It pokes if the answer differs from
// the one before, which counts as Unknown if it is older than gatewayMaxAge.
func (g *Gateway) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.askNow:
		}
		answer := vip.Unknown
		if address := g.o.Address(); address.IsValid() {
			answer = vip.Dead
			if g.o.Answers(ctx, address) {
				answer = vip.Alive
			}
		}
		before := g.last.Load().current()
		g.last.Store(&gatewayAnswer{answer, time.Now()})
		if answer != before {
			g.o.Poke()
		}
	}
}
