package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// leaseConfig returns cfg for writes of Leases: a connection that is silent is left, and the next one goes to another
// API server, if s or what is behind the address has one.
func leaseConfig(cfg *rest.Config, s *Servers) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	if s == nil {
		cfg.Dial = dialAgain
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &leavingTransport{next: next, servers: s}
	})
	return cfg
}

// dialAgain dials up to three times, each attemptDelay apart: of the API servers behind one address one may be dead.
func dialAgain(ctx context.Context, network, address string) (net.Conn, error) {
	c, _, err := dialFirst(ctx, network, []string{address, address, address})
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		err = all.Unwrap()[0]
	}
	return c, err
}

// A leavingTransport closes the connection of a request that times out, if nothing was answered since it was sent: the
// server may be dead or hang, and HTTP/2 would have all further requests wait there, too.
type leavingTransport struct {
	next     http.RoundTripper
	servers  *Servers                  // are told of a connection that was closed; may be nil
	answered atomic.Pointer[time.Time] // when the last answer came; nil: none has
}

// RoundTrip implements http.RoundTripper.
func (t *leavingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, conn, whole := time.Now(), atomic.Pointer[httptrace.GotConnInfo]{}, atomic.Bool{}
	trace := &httptrace.ClientTrace{
		GotConn:      func(c httptrace.GotConnInfo) { conn.Store(&c) },
		WroteRequest: func(i httptrace.WroteRequestInfo) { whole.Store(i.Err == nil) },
	}
	resp, err := t.next.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err == nil {
		t.answered.Store(new(time.Now()))
		return resp, nil
	}
	last, over := t.answered.Load(), conn.Load()
	if errors.Is(err, net.ErrClosed) && !whole.Load() && r.Context().Err() == nil && r.GetBody != nil {
		// It was to go by a connection that was just left: the pool learns of that later. What went may have been done.
		if body, err := r.GetBody(); err == nil {
			r = r.Clone(r.Context())
			r.Body = body
			return t.RoundTrip(r)
		}
	}
	if over == nil || !errors.Is(r.Context().Err(), context.DeadlineExceeded) || last != nil && last.After(sent) {
		return nil, err
	}
	c := over.Conn
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn() // TLS would say goodbye, and wait for that
	}
	if t.servers != nil {
		t.servers.setSilent(c.RemoteAddr().String())
	}
	c.Close()
	return nil, err
}
