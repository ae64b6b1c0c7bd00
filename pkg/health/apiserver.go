package health

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// APIServerOptions of an APIServer.
type APIServerOptions struct {
	Ask      func(context.Context) error // puts the question once; nil is yes
	Every    time.Duration               // between two questions
	Timeout  time.Duration               // for an answer
	Failures int                         // in a row that make it count as not ready

	Log     *slog.Logger
	Changed func(ready bool) // called from Run when the answer is another
}

// An APIServer asks again and again whether this node's own API server is ready. It
// is not before the first good answer.
type APIServer struct {
	o     APIServerOptions
	ready atomic.Bool
}

// eager is how often an API server that is not ready is asked, if Every is longer:
// the VIP of the control plane waits for it.
const eager = 250 * time.Millisecond

// NewAPIServer makes an APIServer. Run does the asking.
func NewAPIServer(o APIServerOptions) *APIServer { return &APIServer{o: o} }

// String names the task.
func (a *APIServer) String() string { return "probe of the API server" }

// Ready reports whether this node's own API server is.
func (a *APIServer) Ready() bool { return a.ready.Load() }

// Run asks until ctx ends.
func (a *APIServer) Run(ctx context.Context) error {
	failures := 0
	for {
		began := time.Now()
		err := a.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			failures = 0
		} else {
			failures++
		}
		switch {
		case err == nil && !a.ready.Load():
			a.o.Log.Info("this node's own API server is ready")
			a.set(true)
		case err != nil && a.ready.Load() && failures >= a.o.Failures:
			a.o.Log.Warn("this node's own API server is not ready", "failures", failures, "err", err)
			a.set(false)
		case err != nil:
			a.o.Log.Debug("this node's own API server does not say that it is ready", "failures", failures, "err", err)
		}
		pause := a.o.Every
		if !a.ready.Load() {
			pause = min(pause, eager)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause - time.Since(began)):
		}
	}
}

func (a *APIServer) set(ready bool) {
	a.ready.Store(ready)
	a.o.Changed(ready)
}

// ask puts the question once.
func (a *APIServer) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.o.Timeout, errors.New("no answer in time"))
	defer cancel()
	return a.o.Ask(ctx)
}
