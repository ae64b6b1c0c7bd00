package health

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A dataPlane is a DataPlane whose requests are answered by the test.
type dataPlane struct {
	*DataPlane
	proxy   atomic.Int32 // a proxyAnswer
	forward atomic.Int32 // yes, no, or not known
	network atomic.Bool  // kubelet says that it does not work
	changes atomic.Int32
}

const (
	notKnown = iota
	yes
	no
)

// newDataPlane runs a DataPlane.
func newDataPlane(t *testing.T, proxy proxyAnswer, forward int32) *dataPlane {
	t.Helper()
	d := &dataPlane{}
	d.set(proxy, forward)
	d.DataPlane = NewDataPlane(DataPlaneOptions{Log: slog.New(slog.DiscardHandler), Changed: func() { d.changes.Add(1) }, NetworkNotReady: d.network.Load})
	d.askProxy = func(context.Context) proxyAnswer { return proxyAnswer(d.proxy.Load()) }
	d.forwards = func(context.Context) (bool, bool) {
		if d.forward.Load() != yes {
			time.Sleep(forwardTimeout)
		}
		return d.forward.Load() == yes, d.forward.Load() != notKnown
	}
	check.Run(t, d.DataPlane)
	return d
}

func (d *dataPlane) set(proxy proxyAnswer, forward int32) {
	d.proxy.Store(int32(proxy))
	d.forward.Store(forward)
}

// acts reports whether VIPs are to be handed over.
func (d *dataPlane) acts() bool {
	var w vip.World
	d.Observe(&w)
	return w.DataPlaneFault != ""
}

// What is published after some time in which the answers were others than at the start.
func TestDataPlaneFault(t *testing.T) {
	tests := []struct {
		name         string
		proxyBefore  proxyAnswer
		before       int32
		proxy        proxyAnswer
		forward      int32
		lasts        time.Duration
		fault, moves bool
	}{
		{"all is well", proxyWell, yes, proxyWell, yes, time.Hour, false, false},
		{"kube-proxy restarts, its rules stay", proxyWell, yes, proxySilent, yes, 50 * time.Second, false, false},
		{"kube-proxy and its rules are gone for 3 s", proxyWell, yes, proxySilent, no, 3 * time.Second, false, false},
		{"kube-proxy and its rules are gone for 9 s", proxyWell, yes, proxySilent, no, 9 * time.Second, true, true},
		{"rules are gone, kube-proxy answers", proxyWell, yes, proxyWell, no, 20 * time.Second, true, true},
		{"kube-proxy is gone, its rules stay", proxyWell, yes, proxySilent, yes, 65 * time.Second, true, true},
		{"its rules are out of date", proxyWell, yes, proxyOutOfDate, yes, 65 * time.Second, true, true},
		{"its rules are out of date for half a minute", proxyWell, yes, proxyOutOfDate, yes, 30 * time.Second, false, false},
		{"no API server answers", proxyWell, yes, proxyWell, notKnown, time.Hour, false, false},
		{"there is no kube-proxy", proxySilent, notKnown, proxySilent, notKnown, time.Hour, false, false},
		{"there is no kube-proxy, Services work", proxySilent, yes, proxySilent, yes, time.Hour, false, false},
		{"there is no kube-proxy, Services do not work any more", proxySilent, yes, proxySilent, no, 20 * time.Second, true, true},
		{"kube-proxy is not up yet when the node boots", proxySilent, no, proxySilent, no, 50 * time.Second, false, false},
		{"Services never work", proxySilent, no, proxySilent, no, 80 * time.Second, true, true},
		{"there is no Local Service any more to ask kube-proxy by", proxyWell, notKnown, proxyUnknown, notKnown, time.Hour, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDataPlane(t, tt.proxyBefore, tt.before)
				time.Sleep(500 * time.Millisecond)
				d.set(tt.proxy, tt.forward)
				time.Sleep(tt.lasts)
				synctest.Wait()
				if d.Fault() != "" != tt.fault || d.acts() != tt.moves {
					t.Errorf("fault %q, VIPs are to be moved: %v; want %v and %v", d.Fault(), d.acts(), tt.fault, tt.moves)
				}
			})
		})
	}
}

// A process that has just begun, or has seen nothing but failures, does not say that its node forwards packets: where all nodes have a fault, all VIPs would go to it.
func TestDataPlaneUnproven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataPlane(t, proxySilent, no)
		if !d.Unproven() {
			t.Error("not before the first answer")
		}
		time.Sleep(slowFault / 2)
		synctest.Wait()
		if !d.Unproven() {
			t.Error("not after half a minute of failures")
		}
		time.Sleep(slowFault)
		synctest.Wait()
		if d.Unproven() || d.Fault() == "" {
			t.Errorf("unproven %v, fault %q; want a fault", d.Unproven(), d.Fault())
		}
		d.set(proxySilent, yes)
		time.Sleep(slowFault)
		d.set(proxySilent, no)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d.Unproven() {
			t.Error("after a success and two failures")
		}
	})
	for _, forward := range []int32{yes, notKnown} {
		synctest.Test(t, func(t *testing.T) {
			d := newDataPlane(t, proxySilent, forward)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if d.Unproven() {
				t.Errorf("forwarded: %d", forward)
			}
		})
	}
}

// The network plugin has to be out of order for a minute.
func TestNetworkPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataPlane(t, proxyWell, yes)
		time.Sleep(500 * time.Millisecond)
		d.network.Store(true)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if d.Fault() != "" {
			t.Errorf("after 50 s: %s", d.Fault())
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if d.Fault() == "" || !d.acts() {
			t.Error("no fault after 65 s")
		}
		d.network.Store(false)
		time.Sleep(wellAfter + 3*time.Second)
		synctest.Wait()
		if d.Fault() != "" {
			t.Errorf("after it works again: %s", d.Fault())
		}
	})
}

// A fault that is over ends after 10 s without; one that comes back again and again, later.
func TestDataPlaneFaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataPlane(t, proxyWell, yes)
		time.Sleep(500 * time.Millisecond)
		fail := func() {
			t.Helper()
			d.set(proxySilent, no)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if !d.acts() {
				t.Fatal("no fault after 10 s")
			}
			d.set(proxyWell, yes)
		}
		expect := func(after time.Duration) {
			t.Helper()
			time.Sleep(after - time.Second)
			synctest.Wait()
			if d.Fault() == "" {
				t.Errorf("the fault was over %v after its cause", after-time.Second)
			}
			time.Sleep(4 * time.Second)
			synctest.Wait()
			if d.Fault() != "" || d.acts() {
				t.Errorf("the fault was not over %v after its cause: %s", after+3*time.Second, d.Fault())
			}
		}
		fail()
		expect(wellAfter)
		if got := d.changes.Load(); got != 4 {
			t.Errorf("%d changes were told, want 4: it forwards, published, acted on, ended", got)
		}
		fail()
		expect(2 * wellAfter)
		fail()
		time.Sleep(3 * wellAfter)
		fail() // before it ended: the same
		expect(4 * wellAfter)
		time.Sleep(forgetFaultsAfter)
		fail()
		expect(wellAfter)
		for range 12 {
			fail()
			time.Sleep(maxWellAfter + 3*time.Second)
			synctest.Wait()
			if d.Fault() != "" {
				t.Fatal("a fault lasts longer than maxWellAfter")
			}
		}
	})
}

// What kube-proxy's health check answers (kubernetes/kubernetes pkg/proxy/healthcheck/proxy_health.go).
func TestAskHealthz(t *testing.T) {
	tests := []struct {
		name, body string
		status     int
		want       proxyAnswer
	}{
		{"well", `{"lastUpdated": "now","currentTime": "now", "nodeEligible": true}`, 200, proxyWell},
		{"out of date", `{"lastUpdated": "long ago","currentTime": "now", "nodeEligible": true}`, 503, proxyOutOfDate},
		{"the Node is about to be deleted", `{"lastUpdated": "now","currentTime": "now", "nodeEligible": false}`, 503, proxyWell},
		{"before Kubernetes 1.28", `{"lastUpdated": "long ago"}`, 503, proxyOutOfDate},
		{"something else", "go away", 503, proxyOutOfDate},
		{"no kube-proxy", "not found", 404, proxySilent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			}))
			s.Listener.Close()
			s.Listener = check.Value(net.Listen("tcp", "127.0.0.3:0"))(t) // nobody listens on loopback
			s.Start()
			defer s.Close()
			at := netip.MustParseAddrPort(s.Listener.Addr().String())
			d := NewDataPlane(DataPlaneOptions{
				Checker: NewChecker(slog.New(slog.DiscardHandler), func() {}), Hosts: func() []netip.Addr { return []netip.Addr{at.Addr()} },
			})
			d.proxyPort = at.Port()
			if got := d.askHealthz(t.Context()); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			s.Close()
			if got := d.askHealthz(t.Context()); got != proxySilent {
				t.Errorf("nobody listens: got %d, want %d", got, proxySilent)
			}
		})
	}
}

// Without the health check of kube-proxy any answer of a healthCheckNodePort that was answered before will do.
func TestAskHealthCheckNodePort(t *testing.T) {
	x := listen(t)
	x.status.Store(http.StatusOK)
	c, poked := newChecker(t)
	c.Put([]vip.HealthCheck{x.check})
	<-poked
	d := NewDataPlane(DataPlaneOptions{Checker: c, Log: slog.New(slog.DiscardHandler), Hosts: func() []netip.Addr { return nil }})
	closed := check.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	closed.Close()
	d.proxyPort = uint16(closed.Addr().(*net.TCPAddr).Port)
	expect := func(when string, want proxyAnswer) {
		t.Helper()
		if got := d.askKubeProxy(t.Context()); got != want {
			t.Errorf("%s: got %d, want %d", when, got, want)
		}
	}
	expect("it answers that it is well", proxyWell)
	x.status.Store(http.StatusServiceUnavailable)
	expect("it answers that there is no local endpoint", proxyWell)
	x.close()
	expect("it is gone", proxySilent)
	c.Put(nil)
	expect("the Service is gone", proxyUnknown)
}

// Whether the cluster IP of the API servers leads to them.
func TestForwardsToAPIServers(t *testing.T) {
	open := httptest.NewTLSServer(http.NotFoundHandler())
	defer open.Close()
	server := netip.MustParseAddrPort(open.Listener.Addr().String())
	l := check.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l.Close()
	closed := netip.MustParseAddrPort(l.Addr().String())
	noRoute := netip.MustParseAddrPort("[2001:db8::1]:443")
	if hasRoute(noRoute) {
		noRoute = netip.AddrPort{}
	}
	tests := []struct {
		name      string
		service   netip.AddrPort
		servers   []netip.AddrPort
		ok, known bool
	}{
		{"it does", server, []netip.AddrPort{server}, true, true},
		{"it does, and one of them is away", server, []netip.AddrPort{server, closed}, true, true},
		{"it does not", closed, []netip.AddrPort{server, server}, false, true},
		{"it does not, and one of them is away", closed, []netip.AddrPort{server, closed}, false, false},
		{"there is no route", noRoute, []netip.AddrPort{server}, false, false},
		{"there are no addresses yet", netip.AddrPort{}, nil, false, false},
		{"there are more than are asked", closed, make([]netip.AddrPort, maxServers+1), false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDataPlane(DataPlaneOptions{APIService: func() (netip.AddrPort, []netip.AddrPort) { return tt.service, tt.servers }})
			if ok, known := d.forwardsToAPIServers(t.Context()); ok != tt.ok || known != tt.known {
				t.Errorf("forwards %v, known %v; want %v, %v", ok, known, tt.ok, tt.known)
			}
		})
	}
}
