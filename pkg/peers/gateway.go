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
	// gatewayRefresh is the age at which Liveness asks again.
	gatewayRefresh = 500 * time.Millisecond
	// gatewayMaxAge is the age up to which Liveness returns an answer.
	gatewayMaxAge = 2 * time.Second
)

// GatewayOptions of a Gateway.
type GatewayOptions struct {
	// Address is the default gateway on the link of VIPs, or zero.
	Address func() netip.Addr
	Answers func(ctx context.Context, a netip.Addr) bool
	// Poke is called after each question; must not block.
	Poke func()
}

// A Gateway checks whether the default gateway on the link of VIPs answers. Of two halves of a cluster, only one that
// reaches it may take VIPs over.
type Gateway struct {
	o      GatewayOptions
	askNow mailbox.Signal
	last   atomic.Pointer[gatewayAnswer]
}

type gatewayAnswer struct {
	liveness vip.Liveness // Alive, Dead, or Unknown: there is no gateway
	asked    time.Time
	at       time.Time // when the answer came, or was given up
}

// NewGateway makes a Gateway, Unknown until Run.
func NewGateway(o GatewayOptions) *Gateway {
	g := &Gateway{o: o, askNow: mailbox.NewSignal()}
	g.last.Store(&gatewayAnswer{})
	return g
}

// Liveness returns whether the gateway answered last; Unknown without one, or if it was asked before since or too long
// ago. It has Run ask, and does not block.
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

// Run asks the gateway when Liveness found an answer too old, until ctx ends.
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
