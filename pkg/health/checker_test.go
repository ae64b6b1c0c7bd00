package health

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var service = vip.Key{Namespace: "default", Name: "a"}

// A kubeProxy answers like kube-proxy on a healthCheckNodePort, with a status that can change.
type kubeProxy struct {
	check    vip.HealthCheck
	status   atomic.Int32
	requests atomic.Int32
	close    func()
}

func listen(t *testing.T) *kubeProxy {
	t.Helper()
	l := check.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &kubeProxy{check: vip.HealthCheck{Service: service, Port: uint16(l.Addr().(*net.TCPAddr).Port)}}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		w.WriteHeader(int(p.status.Load()))
	})}
	go s.Serve(l)
	p.close = func() { s.Close() }
	t.Cleanup(p.close)
	return p
}

// newChecker runs a Checker; every poke is a value of the channel.
func newChecker(t *testing.T) (*Checker, chan struct{}) {
	t.Helper()
	poked := make(chan struct{}, 100)
	c := NewChecker(slog.New(slog.DiscardHandler), func() { poked <- struct{}{} })
	check.Run(t, c)
	return c, poked
}

func passed(c *Checker) bool {
	var w vip.World
	c.Observe(&w)
	return w.HealthChecked[service]
}

func TestWaitsUntilKubeProxyIsReady(t *testing.T) {
	x := listen(t)
	x.status.Store(http.StatusServiceUnavailable)
	c, poked := newChecker(t)
	c.Put([]vip.HealthCheck{x.check})
	if passed(c) {
		t.Error("passed before any answer")
	}
	check.True(t, maxWait, "three requests", func() bool { return x.requests.Load() >= 3 })
	if passed(c) {
		t.Fatal("passed although kube-proxy says no")
	}
	x.status.Store(http.StatusOK)
	select {
	case <-poked:
	case <-time.After(maxWait):
		t.Fatal("no poke")
	}
	if !passed(c) {
		t.Error("not passed although kube-proxy says yes")
	}
	c.Put([]vip.HealthCheck{x.check})
	if !passed(c) {
		t.Error("forgotten with the next Put")
	}
	// A yes stands: nobody asks any more, and a later no changes nothing.
	requests := x.requests.Load()
	x.status.Store(http.StatusServiceUnavailable)
	time.Sleep(5 * period)
	if x.requests.Load() != requests || !passed(c) {
		t.Errorf("asked %d times after the yes", x.requests.Load()-requests)
	}
	// Another port of the same Service has not passed, nor has the same one when it is wanted again.
	y := listen(t)
	y.status.Store(http.StatusServiceUnavailable)
	c.Put([]vip.HealthCheck{y.check})
	if passed(c) {
		t.Error("an old yes stands for another port")
	}
	check.True(t, maxWait, "a request to the other port", func() bool { return y.requests.Load() > 0 })
	c.Put([]vip.HealthCheck{x.check})
	check.True(t, maxWait, "another request", func() bool { return x.requests.Load() > requests })
	if passed(c) {
		t.Error("an old yes stands for a check that was not wanted for a while")
	}
}

// Nobody listens, or only ever says no: the check counts as passed after maxWait.
func TestPassesAfterMaxWait(t *testing.T) {
	c, poked := newChecker(t)
	began := time.Now()
	c.Put([]vip.HealthCheck{{Service: service, Port: 1}})
	select {
	case <-poked:
	case <-time.After(maxWait + 5*time.Second):
		t.Fatal("waits for ever")
	}
	if took := time.Since(began); took < maxWait {
		t.Errorf("after %v, want %v", took, maxWait)
	}
	if !passed(c) {
		t.Error("not passed")
	}
}

// kube-proxy may listen on the node's own addresses only.
func TestAsksEachHost(t *testing.T) {
	l := check.Value(net.Listen("tcp", "127.0.0.9:0"))(t)
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	c, poked := newChecker(t)
	c.Put([]vip.HealthCheck{{Service: service, Port: uint16(l.Addr().(*net.TCPAddr).Port), Hosts: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}})
	select {
	case <-poked:
	case <-time.After(maxWait / 2):
		t.Fatal("not found on the second address")
	}
}

// One that never becomes ready, such as at a wrong port, is told of after a minute, with what is wrong.
func TestAPIServerNeverReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		a := NewAPIServerCheck(APIServerOptions{Period: time.Second, Timeout: 2 * time.Second, FailureThreshold: 3,
			Log: slog.New(slog.NewTextHandler(&log, nil)),
			Ask: func(context.Context) error { return errors.New("connection refused") }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		check.OK(t, a.Run(ctx))
		if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "connection refused") {
			t.Errorf("it logs %q", got)
		}
	})
}

// TestAPIServerReadiness walks through the life of an API server: what Changed is called with, and when.
func TestAPIServerReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		within := func(from, to float64) bool {
			s := time.Since(start).Seconds()
			return s >= from && s < to
		}
		var reported []string
		a := NewAPIServerCheck(APIServerOptions{
			Period: time.Second, Timeout: 2 * time.Second, FailureThreshold: 3,
			Log: slog.New(slog.DiscardHandler),
			Ask: func(ctx context.Context) error {
				switch {
				case within(0, 10), within(20.5, 22), within(30.5, 40):
					return errors.New("refused")
				case within(50.5, 70): // hangs
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			},
			Changed: func(ready bool) {
				text := "not ready"
				if ready {
					text = "ready"
				}
				reported = append(reported, text+" at "+time.Since(start).String())
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 80*time.Second)
		defer cancel()
		check.OK(t, a.Run(ctx))
		want := []string{
			"ready at 10s",     // noticed at the next quarter of a second
			"not ready at 33s", // the third failure; two at 21 s and 22 s were too few
			"ready at 40s",     //
			"not ready at 57s", // three requests that got no answer in 2 s each
			"ready at 1m11s",   // the one under way at 70 s gets none either
		}
		if !slices.Equal(reported, want) {
			t.Errorf("reported %q\nwant %q", reported, want)
		}
	})
}
