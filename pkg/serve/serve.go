// Package serve answers HTTP: metrics, health, and what the node is doing.
//
// Nothing depends on it. An address that can't be had is a warning and tried
// again, since no VIP should go away for the sake of a metrics port.
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

// Limits that keep slow or many clients from holding the process up.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
	headerBytes    = 16 << 10
	maxConnections = 256 // of each listener
	shutdownGrace  = time.Second
)

// How long to wait before an address is tried again: twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A Server serves Pages. It is a task: Run does all of it.
type Server struct {
	sites  []site
	log    *slog.Logger
	listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// A site is an address and what is served there.
type site struct {
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
		s.sites = append(s.sites, site{"metrics", metrics, pages.all(log)})
	}
	if healthPort != 0 {
		s.sites = append(s.sites, site{"health", fmt.Sprintf(":%d", healthPort), pages.health()})
	}
	return s
}

func (s *Server) String() string { return "http" }

// Run serves until ctx is done. It returns nil: what goes wrong is logged, and tried again.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, at := range s.sites {
		all.Go(func() { s.keep(ctx, at) })
	}
	all.Wait()
	<-ctx.Done() // there may be no site
	return nil
}

// keep serves a site for as long as ctx lasts.
func (s *Server) keep(ctx context.Context, at site) {
	retry, told := firstRetry, ""
	for {
		served, err := s.serve(ctx, at)
		if ctx.Err() != nil {
			return
		}
		if served {
			retry, told = firstRetry, ""
		}
		level := slog.LevelDebug
		if err.Error() != told {
			level, told = slog.LevelWarn, err.Error()
		}
		s.log.Log(ctx, level, "can't serve HTTP, trying again", "what", at.name, "address", at.address, "error", err, "retry", retry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastRetry)
	}
}

// serve serves a site once. It reports whether it came to that, and why it ended.
func (s *Server) serve(ctx context.Context, at site) (served bool, err error) {
	l, err := s.listen(ctx, "tcp", at.address)
	if err != nil {
		return false, err
	}
	s.log.Info("serving HTTP", "what", at.name, "address", l.Addr().String())
	srv := &http.Server{
		Handler:           at.handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
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
