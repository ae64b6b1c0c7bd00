package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// servePipe serves the one endpoint of o on the pipeListener that it returns, until the test ends.
func servePipe(t *testing.T, o Options) (*Server, *pipeListener) {
	w := newPipeListener()
	s := New(o)
	s.listen = func(context.Context, string, string) (net.Listener, error) { return w, nil }
	t.Cleanup(check.Run(t, s))
	return s, w
}

// quiet is the options of a node with the metrics endpoint, whose log nobody reads.
func quiet() Options { return options(":2112", 0, slog.New(slog.DiscardHandler)) }

// TestConnectionsHeldOpen: whoever holds connections open, as many as he can and from as many hosts as he
// likes, keeps neither the node itself nor another host from being answered, and costs a bounded number of them.
func TestConnectionsHeldOpen(t *testing.T) {
	const kubelet, scraper = nodeAddress, "192.0.2.70"
	for _, tt := range []struct {
		name string
		from func(i int) string
		open int // of 300
	}{
		{"one host", func(int) string { return otherHost }, maxPerSource},
		{"many hosts", func(i int) string { return fmt.Sprintf("198.51.%d.%d", 100+i/250, i%250) }, maxRemote},
		{"one IPv6 host with many addresses", func(i int) string { return fmt.Sprintf("2001:db8::%x", i+1) }, maxPerSource},
		{"the host of Prometheus", func(int) string { return scraper }, maxPerSource},
		{"this node, by its address", func(int) string { return nodeAddress }, maxLocal},
		{"this node, by another of its addresses", func(int) string { return secondaryAddress }, maxLocal},
	} {
		for _, kind := range []string{"silent", "half a request", "kept alive", "an answer not read"} {
			t.Run(tt.name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, w := servePipe(t, quiet())
					var closed atomic.Int32
					for i := range 300 {
						c := check.Value(w.dialFrom(tt.from(i), nodeAddress))(t)
						begin(t, c, kind)
						go func() {
							if kind != "an answer not read" {
								io.ReadAll(c) // until the server closes it
								closed.Add(1)
							}
						}()
						synctest.Wait()
					}
					if want := float64(300 - tt.open); check.Metric(t, " limit", s.Collectors()...) != want || kind != "an answer not read" && closed.Load() != int32(want) {
						t.Errorf("%v connections were closed, want %v", closed.Load(), want)
					}
					for _, asked := range []struct{ from, to, path string }{
						{kubelet, nodeAddress, "/healthz"}, {"127.0.0.1", "127.0.0.1", "/readyz"}, {scraper, nodeAddress, "/metrics"},
					} {
						if got, err := w.getFrom(asked.from, asked.to, asked.path); !strings.HasPrefix(got, "200 ") {
							t.Errorf("%s from %s: %q, %v", asked.path, asked.from, got, err)
						}
					}
				})
			})
		}
	}
}

// TestRequestUnderWay: a connection with a request under way is not the one that is closed.
func TestRequestUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, ready, answer := quiet(), make(chan struct{}), make(chan string)
		o.Pages.Ready = func() error { <-ready; return nil }
		_, w := servePipe(t, o)
		go func() {
			got, _ := w.getFrom(otherHost, nodeAddress, "/readyz")
			answer <- got
		}()
		synctest.Wait()
		for range 3 * maxPerSource {
			begin(t, check.Value(w.dialFrom(otherHost, nodeAddress))(t), "silent")
			synctest.Wait()
		}
		close(ready)
		if got := <-answer; got != "200 ok\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestTooManyConnectionsAreLogged: once in a while, with who has them.
func TestTooManyConnectionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		_, w := servePipe(t, options(":2112", 0, log.logger()))
		for range 10 * maxPerSource {
			begin(t, check.Value(w.dialFrom(otherHost, nodeAddress))(t), "silent")
			synctest.Wait()
		}
		const want = `level=WARN msg="too many connections are open: the oldest are closed for new ones" endpoint=metrics open=16 from=192.0.2.99/32`
		if last := log.lines[len(log.lines)-1]; last != want || log.count("WARN") != 1 {
			t.Errorf("log %q, want one warning: %s", log.lines, want)
		}
	})
}

// begin sends as much as a client of this kind does.
func begin(t *testing.T, c net.Conn, kind string) {
	t.Cleanup(func() { c.Close() })
	switch kind {
	case "half a request":
		check.Value(io.WriteString(c, "GET /healthz HTTP/1.1\r\nHo"))(t)
	case "kept alive":
		check.Value(io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n"))(t)
		r := check.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
		check.Value(io.ReadAll(r.Body))(t)
	case "an answer not read":
		check.Value(io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n"))(t)
	}
}

// TestRefusedConnections: nothing is served on a VIP, nor to other hosts on the port for probes.
func TestRefusedConnections(t *testing.T) {
	for _, tt := range []struct {
		health   bool
		from, to string
		reason   string // "" is an answer
	}{
		{false, otherHost, nodeAddress, ""},
		{false, otherHost, vipAddress, "vip"},
		{false, vipAddress, vipAddress, "vip"},
		{false, "127.0.0.1", vipAddress, "vip"},
		{true, otherHost, nodeAddress, "not_local"},
		{true, otherHost, "127.0.0.1", "not_local"}, // route_localnet is 1 with kube-proxy
		{true, otherHost, vipAddress, "vip"},
		{true, nodeAddress, vipAddress, "vip"},
		{true, nodeAddress, nodeAddress, ""},
		{true, nodeAddress, secondaryAddress, ""}, // the kernel's choice of the source
		{true, "192.0.2.7", "192.0.2.7", ""},      // an address that IsLocal does not know yet
		{true, "127.0.0.1", "127.0.0.1", ""},
		{true, "::1", "::1", ""},
		{true, "::ffff:127.0.0.1", "::ffff:127.0.0.1", ""},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := quiet()
				if tt.health {
					o.Metrics, o.HealthPort = "", 2113
				}
				s, w := servePipe(t, o)
				got, err := w.getFrom(tt.from, tt.to, "/healthz")
				if (err == nil) != (tt.reason == "") || err == nil && got != "200 ok\n" {
					t.Errorf("got %q, %v", got, err)
				}
				if tt.reason != "" && check.Metric(t, " "+tt.reason, s.Collectors()...) != 1 {
					t.Errorf("not counted as %s", tt.reason)
				}
			})
		})
	}
}

// TestListenOnVIP: an operator who names an address as that of the metrics gets it, even if it is a VIP.
func TestListenOnVIP(t *testing.T) {
	o := options("127.0.0.1:0", 0, slog.New(slog.DiscardHandler))
	o.IsVIP = netip.Addr.IsLoopback
	s, at := New(o), make(chan string, 1)
	s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		at <- l.Addr().String()
		return l, err
	}
	check.Run(t, s)
	if got := body(t, "http://"+<-at+"/healthz"); got != "ok\n" {
		t.Errorf("got %q", got)
	}
}

// TestIdleConnections: a connection that asks for nothing more is closed.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := servePipe(t, quiet())
		c := check.Value(w.dial())(t)
		begin(t, c, "kept alive")
		began := time.Now()
		io.ReadAll(c)
		if took := time.Since(began); took != idleTimeout {
			t.Errorf("closed after %v, want %v", took, idleTimeout)
		}
	})
}
