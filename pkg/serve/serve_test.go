package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// TestRun serves both endpoints on real sockets.
func TestRun(t *testing.T) {
	var log logs
	s := New(options("127.0.0.1:1", 1, log.logger())) // two names for one port
	listeners := make(chan net.Listener, 2)
	s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
		listeners <- l
		return l, err
	}
	stop := check.Run(t, s)
	metrics := 0
	for range 2 {
		base := "http://" + (<-listeners).Addr().String()
		for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n"} {
			if got := body(t, base+path); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
		if strings.Contains(body(t, base+"/metrics"), "herald_test_held 3") {
			metrics++
		}
		defer func() {
			if _, err := http.Get(base + "/healthz"); err == nil {
				t.Errorf("%s still answers", base)
			}
		}()
	}
	if metrics != 1 {
		t.Errorf("%d endpoints with metrics, want 1", metrics)
	}
	stop()
	if got := log.count("INFO"); got != 2 || len(log.lines) != 2 {
		t.Errorf("log %q, want two lines of what is served", log.lines)
	}
}

func body(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	check.OK(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	check.OK(t, err)
	return string(b)
}

func TestEndpoints(t *testing.T) {
	tests := []struct {
		metrics string
		health  uint16
		want    []string
	}{
		{"", 0, nil},
		{":2112", 0, []string{"metrics :2112"}},
		{"", 2113, []string{"health :2113"}},
		{"[::1]:2112", 2113, []string{"metrics [::1]:2112", "health :2113"}},
	}
	for _, tt := range tests {
		var got []string
		for _, at := range New(options(tt.metrics, tt.health, slog.New(slog.DiscardHandler))).endpoints {
			got = append(got, at.name+" "+at.address)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q, %d: -want +got:\n%s", tt.metrics, tt.health, diff)
		}
	}
}

// TestNothingToServe: a task with nothing to do lasts as long as the others.
func TestNothingToServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		err := New(options("", 0, slog.New(slog.DiscardHandler))).Run(ctx)
		if got := time.Since(begin); err != nil || got != time.Hour {
			t.Errorf("Run: %v after %v, want nil after an hour", err, got)
		}
	})
}

// TestAddressInUse, on a real socket: logged once, and the other endpoint is served.
func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	defer taken.Close()
	var log logs
	s := New(options(taken.Addr().String(), 1, log.logger()))
	tried, served := make(chan error, 1), make(chan net.Listener, 1)
	real := s.listen
	s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		if address == ":1" {
			l, err := real(ctx, network, "127.0.0.1:0")
			served <- l
			return l, err
		}
		l, err := real(ctx, network, address)
		tried <- err
		return l, err
	}
	stop := check.Run(t, s)
	if err := <-tried; err == nil {
		t.Error("the address was not in use")
	}
	if got := body(t, "http://"+(<-served).Addr().String()+"/healthz"); got != "ok\n" {
		t.Errorf("/healthz: %q", got)
	}
	stop()
}

// TestRetry: the time between tries doubles, there is one warning as long as the error is the same, and both
// start again once the endpoint was served.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		s := New(options(":2112", 0, log.logger()))
		begin, w := time.Now(), newPipeListener()
		var tries []time.Duration
		s.listen = func(context.Context, string, string) (net.Listener, error) {
			tries = append(tries, time.Since(begin))
			switch n := len(tries); {
			case n <= 7:
				return nil, errors.New("address already in use")
			case n == 9:
				return nil, errors.New("permission denied")
			}
			w = newPipeListener()
			return w, nil
		}
		stop := check.Run(t, s)
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got, err := w.get("/healthz"); got != "200 ok\n" {
			t.Errorf("got %q, %v", got, err)
		}
		w.broken <- errors.New("interface gone")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got, err := w.get("/healthz"); got != "200 ok\n" {
			t.Errorf("got %q, %v", got, err)
		}
		stop()
		seconds := func(n ...time.Duration) (all []time.Duration) {
			for _, n := range n {
				all = append(all, n*time.Second)
			}
			return all
		}
		// The listener breaks at 100 s; the next try is a first retry again.
		if diff := cmp.Diff(seconds(0, 1, 3, 7, 15, 31, 61, 91, 101, 103), tries); diff != "" {
			t.Errorf("tries, -want +got:\n%s", diff)
		}
		want := []string{
			`level=WARN msg="can't serve HTTP, trying again" endpoint=metrics address=:2112 err="address already in use" after=1s`,
			`level=WARN msg="can't serve HTTP, trying again" endpoint=metrics address=:2112 err="interface gone" after=1s`,
			`level=WARN msg="can't serve HTTP, trying again" endpoint=metrics address=:2112 err="permission denied" after=2s`,
			`level=INFO msg="serving HTTP" endpoint=metrics address=[::]:2112`,
		}
		var got []string
		for _, line := range log.lines {
			if !strings.HasPrefix(line, "level=DEBUG") && (!strings.HasPrefix(line, "level=INFO") || len(got) == 3) {
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log, -want +got:\n%s", diff)
		}
		if log.count("DEBUG") != 6 || log.count("INFO") != 2 {
			t.Errorf("log %q, want 6 of DEBUG and 2 of INFO", log.lines)
		}
	})
}

// TestStopWhileWaiting: Run does not wait for the next try when it is stopped.
func TestStopWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(options(":2112", 0, slog.New(slog.DiscardHandler)))
		s.listen = func(context.Context, string, string) (net.Listener, error) { return nil, errors.New("no") }
		stop := check.Run(t, s)
		time.Sleep(time.Minute)
		synctest.Wait()
		begin := time.Now()
		if stop(); time.Since(begin) != 0 {
			t.Errorf("Run ended after %v", time.Since(begin))
		}
	})
}

// TestSlowClient: the connection of a client that never ends its request is closed.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPipeListener()
		s := New(options(":2112", 0, slog.New(slog.DiscardHandler)))
		s.listen = func(context.Context, string, string) (net.Listener, error) { return w, nil }
		stop := check.Run(t, s)
		c, err := w.dial()
		check.OK(t, err)
		begin := time.Now()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: "); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil { // until the server closes
			t.Errorf("ReadAll: %v", err)
		}
		if got := time.Since(begin); got != headerTimeout {
			t.Errorf("closed after %v, want %v", got, headerTimeout)
		}
		stop()
	})
}

// TestStopDuringRequest: a request under way may end, but not for long.
func TestStopDuringRequest(t *testing.T) {
	for _, takes := range []time.Duration{shutdownGrace / 2, time.Hour} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pages, asked := healthyPages(), make(chan struct{})
				pages.Ready = func() error { close(asked); time.Sleep(takes); return nil }
				w := newPipeListener()
				o := options(":2112", 0, slog.New(slog.DiscardHandler))
				o.Pages = pages
				s := New(o)
				s.listen = func(context.Context, string, string) (net.Listener, error) { return w, nil }
				stop := check.Run(t, s)
				answer := make(chan string)
				go func() {
					got, _ := w.get("/readyz")
					answer <- got
				}()
				<-asked
				begin := time.Now()
				stop()
				if got := time.Since(begin); got > shutdownGrace {
					t.Errorf("Run ended after %v, want at most %v", got, shutdownGrace)
				}
				want := ""
				if takes < shutdownGrace {
					want = "200 ok\n"
				}
				if got := <-answer; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				if _, err := w.dial(); err == nil {
					t.Error("still listening")
				}
				time.Sleep(takes) // the request itself can't be ended from outside
			})
		})
	}
}

// logs is a log that keeps level and message.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func (l *logs) count(level string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.HasPrefix(line, "level="+level+" ") {
			n++
		}
	}
	return n
}

// A pipeListener is a listener without a network: whoever has it can call.
type pipeListener struct {
	conns  chan net.Conn
	broken chan error
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), broken: make(chan error), closed: make(chan struct{})}
}

func (w *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case err := <-w.broken:
		return nil, err
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *pipeListener) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv6unspecified, Port: 2112} }

// Addresses of the node, of a VIP on it, and of other hosts.
const (
	nodeAddress      = "192.0.2.1"
	secondaryAddress = "192.0.2.2"
	vipAddress       = "192.0.2.50"
	otherHost        = "192.0.2.99"
)

// options is those of a node with these addresses.
func options(metrics string, healthPort uint16, log *slog.Logger) Options {
	return Options{
		Metrics: metrics, HealthPort: healthPort, Pages: healthyPages(), Log: log,
		IsLocal: func(a netip.Addr) bool {
			return a.IsLoopback() || a.String() == nodeAddress || a.String() == secondaryAddress || a.String() == vipAddress
		},
		IsVIP: func(a netip.Addr) bool { return a.String() == vipAddress },
	}
}

// An addressed is a connection between two addresses.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.local }
func (a addressed) RemoteAddr() net.Addr { return a.remote }

// dial opens a connection over the loopback link, or fails if nobody listens any more.
func (w *pipeListener) dial() (net.Conn, error) { return w.dialFrom("127.0.0.1", "127.0.0.1") }

// dialFrom opens a connection from one address to another of this node.
func (w *pipeListener) dialFrom(from, to string) (net.Conn, error) {
	near, far := net.Pipe()
	tcp := func(a string, port uint16) net.Addr {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), port))
	}
	select {
	case w.conns <- addressed{far, tcp(to, 2112), tcp(from, 40000)}:
		return near, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// get asks for a page over a connection of its own.
func (w *pipeListener) get(path string) (string, error) {
	return w.getFrom("127.0.0.1", "127.0.0.1", path)
}

func (w *pipeListener) getFrom(from, to, path string) (string, error) {
	c, err := w.dialFrom(from, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return ask(c, path)
}

// ask asks for a page over c, which the server closes then.
func ask(c net.Conn, path string) (string, error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n", path); err != nil {
		return "", err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return fmt.Sprintf("%d %s", r.StatusCode, body), err
}
