// Package serve answers HTTP: metrics, health, and what the node is doing.
//
// An address that can't be listened on is a warning and tried again, since
// no VIP should go away because of a metrics port.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// Limits that keep slow or many clients from blocking the process.
const (
	headerTimeout  = 5 * time.Second
	maxConnections = 256 // of each listener
	shutdownGrace  = time.Second
)

// How long to wait before an address is tried again: twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A Server serves Pages over HTTP.
type Server struct {
	endpoints []endpoint
	log       *slog.Logger
	listen    func(ctx context.Context, network, address string) (net.Listener, error)
}

// An endpoint is an address and what is served there.
type endpoint struct {
	name    string // for the log
	address string
	handler http.Handler
}

// New makes a Server of all pages on the address metrics (host:port, "" is
// none) and of the health pages alone on healthPort of every address of the
// node (0 is none).
func New(metrics string, healthPort uint16, pages Pages, log *slog.Logger) *Server {
	s := &Server{log: log, listen: new(net.ListenConfig).Listen}
	if metrics != "" {
		s.endpoints = append(s.endpoints, endpoint{"metrics", metrics, pages.handler(log)})
	}
	if healthPort != 0 {
		s.endpoints = append(s.endpoints, endpoint{"health", fmt.Sprintf(":%d", healthPort), pages.healthHandler()})
	}
	return s
}

func (s *Server) String() string { return "http" }

// Run serves until ctx is done. It returns nil: what goes wrong is logged, and tried again.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, e := range s.endpoints {
		all.Go(func() { s.serveRetrying(ctx, e) })
	}
	all.Wait()
	<-ctx.Done() // there may be no endpoint
	return nil
}

// serveRetrying serves e until ctx is done, again after each failure. It warns of a failure if that differs from the
// one before, or if e was served meanwhile.
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
		s.log.Log(ctx, level, "can't serve HTTP, trying again", "endpoint", e.name, "address", e.address, "error", err, "retry", retry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastRetry)
	}
}

// serve serves e until that fails or ctx is done. It reports whether it could listen, and the failure.
func (s *Server) serve(ctx context.Context, e endpoint) (served bool, err error) {
	l, err := s.listen(ctx, "tcp", e.address)
	if err != nil {
		return false, err
	}
	s.log.Info("serving HTTP", "endpoint", e.name, "address", l.Addr().String())
	srv := &http.Server{
		Handler:           e.handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
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
	err = srv.Serve(netutil.LimitListener(l, maxConnections))
	if stop() {
		return true, errors.Join(err, srv.Close())
	}
	<-closed
	return true, nil
}
