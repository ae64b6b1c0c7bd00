package health

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

// APIServerOptions of an APIServerCheck, named as those of a Pod's probe.
type APIServerOptions struct {
	Ask              func(context.Context) error // makes one request; nil: the API server is ready
	Period           time.Duration               // between two requests
	Timeout          time.Duration               // for an answer
	FailureThreshold int                         // failures in a row that make it count as not ready

	Log     *slog.Logger
	Changed func(ready bool) // called from Run when it becomes ready, or is ready no more
}

// An APIServerCheck asks periodically whether this node's API server is ready; not ready until it says so.
type APIServerCheck struct {
	o     APIServerOptions
	ready atomic.Bool
}

// maxNotReadyPeriod is the longest time between requests while it is not ready: the VIP waits.
const maxNotReadyPeriod = 250 * time.Millisecond

// startFailures in a row, a minute, at least, are told of a server that has yet to become ready.
const startFailures = int(time.Minute / maxNotReadyPeriod)

// NewAPIServerCheck makes an APIServerCheck, which needs Run.
func NewAPIServerCheck(o APIServerOptions) *APIServerCheck { return &APIServerCheck{o: o} }

// Ready reports whether this node's API server is ready, without blocking.
func (a *APIServerCheck) Ready() bool { return a.ready.Load() }

// Run asks until ctx ends.
func (a *APIServerCheck) Run(ctx context.Context) error {
	var answers signal
	for {
		began := time.Now()
		err := a.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		answers.update(err == nil, began)
		was, failures := a.ready.Load(), answers.failures
		ready := err == nil || was && failures < a.o.FailureThreshold
		switch {
		case ready && !was:
			a.o.Log.Info("this node's own API server is ready")
		case was && !ready, err != nil && failures == startFailures && !was:
			a.o.Log.Warn("this node's own API server is not ready", "failures", failures, "err", err)
		case err != nil:
			a.o.Log.Debug("this node's own API server does not say that it is ready", "failures", failures, "err", err)
		}
		if a.ready.Store(ready); ready != was {
			a.o.Changed(ready)
		}
		pause := a.o.Period
		if !ready {
			pause = min(pause, maxNotReadyPeriod)
		}
		if !mailbox.Sleep(ctx, pause-time.Since(began)) {
			return nil
		}
	}
}

func (a *APIServerCheck) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.o.Timeout, errors.New("no answer in time"))
	defer cancel()
	return a.o.Ask(ctx)
}
