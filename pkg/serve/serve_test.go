package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
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

func TestString(t *testing.T) {
	if got := New(options("", 0, slog.New(slog.DiscardHandler))).String(); got != "http" {
		t.Errorf("String = %q, want http", got)
	}
}
