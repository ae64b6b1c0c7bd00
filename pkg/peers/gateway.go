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
	// Address is this node's default gateway on the VIPs' link; zero if it has none.
	Address func() netip.Addr
	// Answers asks the VIPs' link who has an address (ARP, NDP), and reports whether
	// anybody answers. It returns when ctx ends, or before.
	Answers func(ctx context.Context, a netip.Addr) bool
	// Poke is called when Liveness returns another value than before, unless that is
	// because the last answer grew too old. It must not block.
	Poke func()
}

// A Gateway checks whether the default gateway on the VIPs' link answers. Of two halves
// of a cluster that can't see each other, only the one that reaches it may take VIPs over.
type Gateway struct {
	o      GatewayOptions
	wanted mailbox.Signal // Liveness needs an answer that is newer
	last   atomic.Pointer[gatewayAnswer]
}

// A gatewayAnswer is what a gateway was found to be at some time.
type gatewayAnswer struct {
	liveness vip.Liveness // Alive, Dead, or Unknown: there is no gateway
	at       time.Time
}

// NewGateway makes a Gateway that asks nothing before Run.
func NewGateway(o GatewayOptions) *Gateway {
	g := &Gateway{o: o, wanted: mailbox.NewSignal()}
	g.last.Store(&gatewayAnswer{})
	return g
}

// String names the task.
func (g *Gateway) String() string { return "gateway" }

// Liveness is Alive if the gateway answered when it was asked last, and Dead if it did
// not. It is Unknown if there is no gateway, if it was not asked yet, or if that was more
// than 2 s ago. It does not block: if the answer is older than 0.5 s it has Run ask again.
func (g *Gateway) Liveness() vip.Liveness {
	last := g.last.Load()
	age := time.Since(last.at)
	if age > gatewayRefresh {
		g.wanted.Send()
	}
	if age > gatewayMaxAge {
		return vip.Unknown
	}
	return last.liveness
}

// Run asks the gateway each time Liveness finds the last answer too old, until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wanted:
		}
		liveness := g.ask(ctx)
		last := g.last.Load()
		returned := last.liveness
		if time.Since(last.at) > gatewayMaxAge {
			returned = vip.Unknown
		}
		g.last.Store(&gatewayAnswer{liveness, time.Now()})
		if liveness != returned {
			g.o.Poke()
		}
	}
}

// ask asks whether the gateway answers; Unknown if there is none.
func (g *Gateway) ask(ctx context.Context) vip.Liveness {
	address := g.o.Address()
	switch {
	case !address.IsValid():
		return vip.Unknown
	case g.o.Answers(ctx, address):
		return vip.Alive
	}
	return vip.Dead
}
