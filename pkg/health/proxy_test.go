package health

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

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
