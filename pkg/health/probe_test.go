package health

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

var service = vip.Key{Namespace: "default", Name: "a"}

// A proxy answers like kube-proxy's health check node port, with a status that can change.
type proxy struct {
	probe  vip.HealthCheck
	status atomic.Int32
	asked  atomic.Int32
}

func listen(t *testing.T) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{probe: vip.HealthCheck{Service: service, Port: uint16(l.Addr().(*net.TCPAddr).Port)}}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		w.WriteHeader(int(p.status.Load()))
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return p
}

// probes runs Probes; every poke is a value of the channel.
func probes(t *testing.T) (*Probes, chan struct{}) {
	t.Helper()
	poked := make(chan struct{}, 100)
	p := New(slog.New(slog.DiscardHandler), func() { poked <- struct{}{} })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p, poked
}

func ready(p *Probes) bool {
	var w vip.World
	p.Observe(&w)
	return w.HealthChecked[service]
}

func TestWaitsForYes(t *testing.T) {
	x := listen(t)
	x.status.Store(http.StatusServiceUnavailable)
	p, poked := probes(t)
	if have, _ := p.Set(t.Context(), []vip.HealthCheck{x.probe}); len(have) != 0 {
		t.Errorf("have %v before any answer", have)
	}
	for x.asked.Load() < 3 {
		time.Sleep(time.Millisecond)
	}
	if ready(p) {
		t.Fatal("ready although kube-proxy says no")
	}
	x.status.Store(http.StatusOK)
	select {
	case <-poked:
	case <-time.After(atMost):
		t.Fatal("no poke")
	}
	if !ready(p) {
		t.Error("not ready although kube-proxy says yes")
	}
	if have, _ := p.Set(t.Context(), []vip.HealthCheck{x.probe}); len(have) != 1 {
		t.Errorf("have %v", have)
	}
	// A yes stands: nobody asks any more, and a later no changes nothing.
	asked := x.asked.Load()
	x.status.Store(http.StatusServiceUnavailable)
	time.Sleep(5 * every)
	if x.asked.Load() != asked || !ready(p) {
		t.Errorf("asked %d times after the yes", x.asked.Load()-asked)
	}
	// Not wanted for a while: asked anew.
	p.Set(t.Context(), nil)
	p.Set(t.Context(), []vip.HealthCheck{x.probe})
	if ready(p) {
		t.Error("an old yes stands for a new question")
	}
}

// Nobody listens, or only ever says no: the VIP goes ahead after a bound.
func TestGoesAhead(t *testing.T) {
	p, poked := probes(t)
	began := time.Now()
	p.Set(t.Context(), []vip.HealthCheck{{Service: service, Port: 1}})
	select {
	case <-poked:
	case <-time.After(atMost + 5*time.Second):
		t.Fatal("waits for ever")
	}
	if took := time.Since(began); took < atMost {
		t.Errorf("after %v, want %v", took, atMost)
	}
	if !ready(p) {
		t.Error("not ready")
	}
}

// kube-proxy may listen on the node's own addresses only.
func TestOtherHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	p, poked := probes(t)
	p.Set(t.Context(), []vip.HealthCheck{{Service: service, Port: uint16(l.Addr().(*net.TCPAddr).Port), Hosts: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}})
	select {
	case <-poked:
	case <-time.After(atMost / 2):
		t.Fatal("not found on the second address")
	}
}
