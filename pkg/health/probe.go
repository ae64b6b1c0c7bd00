// Package health asks kube-proxy on this node whether it serves a Service with
// externalTrafficPolicy Local: the Service's healthCheckNodePort answers 200 once
// kube-proxy has its rules for the local endpoints in place. A VIP that arrives
// before that would attract packets that are dropped.
package health

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	every   = 30 * time.Millisecond  // between two questions about the same Service
	timeout = 500 * time.Millisecond // for one answer
	atMost  = 2 * time.Second        // without any answer so far, the VIP goes ahead: the data plane may have no such port
	asking  = 16                     // questions at a time
)

// Probes is a part over vip.Probe: it asks until the answer is yes, or until it
// has asked long enough. A yes stands for as long as the Probe is wanted.
type Probes struct {
	log    *slog.Logger
	poke   func()
	client *http.Client
	wake   chan struct{}

	mu   sync.Mutex
	want map[vip.Key]*question
}

type question struct {
	vip.HealthCheck
	since time.Time
	ready bool
}

// New makes Probes. poke is called when an answer changes the World.
func New(log *slog.Logger, poke func()) *Probes {
	return &Probes{
		log: log, poke: poke,
		client: &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}},
		wake:   make(chan struct{}, 1),
		want:   make(map[vip.Key]*question),
	}
}

// String names the task.
func (p *Probes) String() string { return "probes" }

// Set stores what to ask for and returns what is known to be served.
func (p *Probes) Set(_ context.Context, want []vip.HealthCheck) (have []vip.HealthCheck, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.want
	p.want = make(map[vip.Key]*question, len(want))
	for _, w := range want {
		q := old[w.Service]
		if q == nil || q.Port != w.Port {
			q = &question{since: time.Now()}
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
		q.HealthCheck = w
		p.want[w.Service] = q
		if q.ready {
			have = append(have, w)
		}
	}
	return have, nil
}

// Observe fills in which Services are served here.
func (p *Probes) Observe(w *vip.World) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.HealthChecked = make(map[vip.Key]bool, len(p.want))
	for k, q := range p.want {
		w.HealthChecked[k] = q.ready
	}
}

// Run asks until ctx ends.
func (p *Probes) Run(ctx context.Context) error {
	for {
		open := p.open()
		if len(open) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
			}
			continue
		}
		var group errgroup.Group
		group.SetLimit(asking)
		for _, probe := range open {
			group.Go(func() error {
				p.settle(probe, p.ask(ctx, probe))
				return nil
			})
		}
		group.Wait()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// open is what is still to be asked for.
func (p *Probes) open() []vip.HealthCheck {
	p.mu.Lock()
	defer p.mu.Unlock()
	var open []vip.HealthCheck
	for _, q := range p.want {
		if !q.ready {
			open = append(open, q.HealthCheck)
		}
	}
	return open
}

// settle takes over an answer.
func (p *Probes) settle(probe vip.HealthCheck, yes bool) {
	p.mu.Lock()
	q := p.want[probe.Service]
	if q == nil || q.Port != probe.Port || q.ready {
		p.mu.Unlock()
		return
	}
	late := time.Since(q.since) > atMost
	q.ready = yes || late
	ready := q.ready
	p.mu.Unlock()
	if ready && !yes {
		p.log.Warn("kube-proxy on this node does not say that it serves the Service; its VIP is bound all the same",
			"service", probe.Service, "healthCheckNodePort", probe.Port, "waited", atMost)
	}
	if ready {
		p.poke()
	}
}

// ask puts the question to each address kube-proxy may listen on.
func (p *Probes) ask(ctx context.Context, probe vip.HealthCheck) bool {
	hosts := append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, probe.Hosts...)
	for _, h := range hosts {
		url := "http://" + net.JoinHostPort(h.String(), strconv.Itoa(int(probe.Port))) + "/healthz"
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		answer, err := p.client.Do(req)
		if err != nil {
			continue // nobody listens on that one
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
	return false
}
