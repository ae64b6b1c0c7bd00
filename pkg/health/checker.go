// Package health asks whether what stands behind a VIP on this node is ready:
//   - kube-proxy, or what replaces it, all the time (DataPlane): whether this node would
//     forward packets to VIPs.
//   - kube-proxy, for a Service with externalTrafficPolicy Local (Checker): its
//     healthCheckNodePort answers 200 once kube-proxy has its rules for the local
//     endpoints in place. A VIP bound before that would attract packets that are dropped.
//   - the node's own API server, for the VIP of the control plane (APIServerCheck).
package health

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	period  = 30 * time.Millisecond  // between two requests for the same Service
	timeout = 500 * time.Millisecond // for one answer
	// a check counts as passed after so long: the data plane may have no such port
	maxWait     = 2 * time.Second
	maxInFlight = 16 // requests at a time
)

// A Checker makes HealthChecks (docs/why.md, "Local Services"); one passes once while it is wanted.
type Checker struct {
	log      *slog.Logger
	poke     func()
	client   *http.Client
	inFlight chan struct{} // holds one value per request
	want     *mailbox.Mailbox[[]vip.HealthCheck]
	pollers  atomic.Pointer[map[key]*poller] // written by Run, never changed afterwards
}

type key struct {
	service vip.Key
	port    uint16
}

// A poller is a HealthCheck that a goroutine works on.
type poller struct {
	vip.HealthCheck
	passed   atomic.Bool
	answered atomic.Bool // it passed by an answer
	cancel   context.CancelFunc
}

// NewChecker makes a Checker, which needs Run; poke is called when a check has passed.
func NewChecker(log *slog.Logger, poke func()) *Checker {
	c := &Checker{
		log: log, poke: poke, inFlight: make(chan struct{}, maxInFlight), want: mailbox.New[[]vip.HealthCheck](),
		client: &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	c.pollers.Store(&map[key]*poller{})
	return c
}

// Put replaces the HealthChecks, one per Service, without blocking.
func (c *Checker) Put(want []vip.HealthCheck) { c.want.Put(want) }

// Observe fills in HealthChecked: of each Service of the last Put, whether it has passed.
func (c *Checker) Observe(w *vip.World) {
	w.HealthChecked = make(map[vip.Key]bool)
	pollers := *c.pollers.Load()
	for _, x := range c.want.Get() {
		w.HealthChecked[x.Service] = pollers[key{x.Service, x.Port}].hasPassed()
	}
}

func (p *poller) hasPassed() bool { return p != nil && p.passed.Load() }

// Run works on the last Put until ctx ends. A check whose Hosts change before it has passed begins again.
func (c *Checker) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	var old map[key]*poller
	for {
		now := map[key]*poller{}
		for _, w := range c.want.Get() {
			k := key{w.Service, w.Port}
			if now[k] = old[k]; !now[k].hasPassed() && (now[k] == nil || !slices.Equal(now[k].Hosts, w.Hosts)) {
				now[k] = &poller{HealthCheck: w}
			}
		}
		c.pollers.Store(&now)
		for k, p := range old {
			if now[k] != p {
				p.cancel()
			}
		}
		for k, p := range now {
			if old[k] != p {
				var inner context.Context
				inner, p.cancel = context.WithCancel(ctx)
				tasks.Go(func() { c.poll(inner, p) })
			}
		}
		old = now
		select {
		case <-ctx.Done():
			return nil
		case <-c.want.Changed:
		}
	}
}

// poll asks every period until p has passed, after maxWait in any case, or ctx ends.
func (c *Checker) poll(ctx context.Context, p *poller) {
	defer p.cancel()
	began := time.Now()
	for {
		c.inFlight <- struct{}{}
		ok := c.status(ctx, p.HealthCheck) == http.StatusOK
		<-c.inFlight
		late := time.Since(began) > maxWait
		switch {
		case ctx.Err() != nil:
			return
		case late && !ok:
			c.log.Warn("kube-proxy on this node does not say that it serves the Service; its VIP is bound all the same",
				"service", p.Service, "healthCheckNodePort", p.Port, "waited", maxWait)
		}
		if ok || late {
			p.answered.Store(ok)
			p.passed.Store(true)
			c.poke()
			return
		}
		mailbox.Sleep(ctx, period)
	}
}

// answered returns up to max wanted HealthChecks that have passed by an answer.
func (c *Checker) answered(max int) (list []vip.HealthCheck) {
	pollers := *c.pollers.Load()
	for _, x := range c.want.Get() {
		if p := pollers[key{x.Service, x.Port}]; p != nil && p.answered.Load() && len(list) < max {
			list = append(list, x)
		}
	}
	return list
}

// firstAnswer asks /healthz at loopback, then at hosts, and returns the first answer, or nil. Its body is to be closed.
func (c *Checker) firstAnswer(ctx context.Context, hosts []netip.Addr, port uint16) *http.Response {
	for _, h := range append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, hosts...) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(h, port).String()+
			"/healthz", nil)
		if err != nil {
			continue
		}
		if answer, err := c.client.Do(req); err == nil {
			return answer
		}
	}
	return nil
}

// status returns the status code of the first answer to w, or 0.
func (c *Checker) status(ctx context.Context, w vip.HealthCheck) int {
	answer := c.firstAnswer(ctx, w.Hosts, w.Port)
	if answer == nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}
