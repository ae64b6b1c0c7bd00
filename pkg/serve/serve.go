// Package serve answers HTTP: metrics, health, and what the node is doing.
//
// An address that can't be listened on is only warned of and tried again: no VIP should go for a metrics port.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
)

// Limits that keep slow clients from blocking the process.
const (
	headerTimeout = 3 * time.Second
	readTimeout   = 5 * time.Second
	writeTimeout  = 10 * time.Second
	idleTimeout   = 15 * time.Second
	shutdownGrace = time.Second
)

// How long before an address is tried again: doubled each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// Options of a Server. IsLocal and IsVIP are called for every connection.
type Options struct {
	Metrics    string // host:port of all pages; "" is none
	HealthPort uint16 // of the health pages alone, for this node itself; 0 is none
	Pages      Pages
	IsLocal    func(netip.Addr) bool // whether this node has the address
	IsVIP      func(netip.Addr) bool // whether it has it for a Service: nothing is served there
	Log        *slog.Logger
}

// A Server serves Pages over HTTP.
type Server struct {
	metric.Set
	o         Options
	endpoints []endpoint
	log       *slog.Logger
	listen    func(ctx context.Context, network, address string) (net.Listener, error)
	refused   *prometheus.CounterVec
}

type endpoint struct {
	name      string // for the log
	address   string
	localOnly bool // connections of other hosts are closed
	handler   http.Handler
}

// New makes a Server. The health port listens on all addresses, as probes without a host ask the node's, and closes
// other hosts' connections.
func New(o Options) *Server {
	s := &Server{o: o, log: o.Log, listen: new(net.ListenConfig).Listen}
	s.refused = metric.Counters(&s.Set, "herald_http_connections_closed_total", "Connections to Herald's own ports that "+
		"it has closed: to a VIP (vip), of another host to the port for probes (not_local), or because there were too many "+
		"(limit).", "server", "reason")
	if o.Metrics != "" {
		s.endpoints = append(s.endpoints, endpoint{name: "metrics", address: o.Metrics, handler: o.Pages.handler(o.Log)})
	}
	if o.HealthPort != 0 {
		s.endpoints = append(s.endpoints,
			endpoint{name: "health", address: fmt.Sprintf(":%d", o.HealthPort), localOnly: true,
				handler: o.Pages.healthHandler()})
	}
	return s
}

// Run serves until ctx is done, and returns nil: failures are logged, and tried again.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, e := range s.endpoints {
		all.Go(func() { s.serveRetrying(ctx, e) })
	}
	all.Wait()
	<-ctx.Done() // there may be no endpoint
	return nil
}

// serveRetrying serves e until ctx is done, also after failures. It warns of new ones, or after e was served.
func (s *Server) serveRetrying(ctx context.Context, e endpoint) {
	retry, logged := firstRetry, ""
	for {
		served, err := s.serve(ctx, e)
		if ctx.Err() != nil {
			return
		}
		if served {
			retry, logged = firstRetry, ""
		}
		level := slog.LevelDebug
		if err.Error() != logged {
			level, logged = slog.LevelWarn, err.Error()
		}
		s.log.Log(ctx, level, "can't serve HTTP, trying again", "endpoint", e.name, "address", e.address, "err", err,
			"after", retry)
		if !mailbox.Sleep(ctx, retry) {
			return
		}
		retry = min(2*retry, lastRetry)
	}
}

// serve serves e until ctx is done or it fails, and reports whether it listened, and the failure.
func (s *Server) serve(ctx context.Context, e endpoint) (served bool, err error) {
	l, err := s.listen(ctx, "tcp", e.address)
	if err != nil {
		return false, err
	}
	s.log.Info("serving HTTP", "endpoint", e.name, "address", l.Addr().String())
	srv := &http.Server{
		Handler:           e.handler,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends streams
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		ConnState:         trackState,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close() // a request took too long; the process is ending
		}
	})
	err = srv.Serve(s.newListener(l, e))
	if stop() {
		return true, errors.Join(err, srv.Close())
	}
	<-closed
	return true, nil
}

// newListener makes the listener of e. An operator who names an address means it, even a VIP.
func (s *Server) newListener(l net.Listener, e endpoint) *listener {
	isVIP := s.o.IsVIP
	if !address(l.Addr()).IsUnspecified() {
		isVIP = func(netip.Addr) bool { return false }
	}
	return &listener{
		Listener: l, localOnly: e.localOnly, isLocal: s.o.IsLocal, isVIP: isVIP,
		log:     s.log.With("endpoint", e.name),
		refused: func(reason string) { s.refused.WithLabelValues(e.name, reason).Inc() },
	}
}
