package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A refusingTransport refuses connections, or answers at once.
type refusingTransport struct{ refuses bool }

func (f *refusingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	if f.refuses {
		return nil, errors.New("connect: connection refused")
	}
	return &http.Response{StatusCode: 200}, nil
}

// TestOutageEndsDelays: a watch that fails is tried again after 0.2 s and, in the end, 3 s, with a jitter; at once when the API server
// answers the first request of any client; but not if it was the API server that answered with an error.
func TestOutageEndsDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, next := &outage{}, &refusingTransport{refuses: true}
		other := &countingTransport{next: next, metrics: newMetrics(), outage: o}
		ask := func() {
			r, _ := http.NewRequestWithContext(t.Context(), "PUT", "https://192.0.2.1:6443/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/herald-node-n1", nil)
			_, _ = other.RoundTrip(r)
		}
		w := &watchedResource{resource: "leases", log: slog.New(slog.DiscardHandler), poke: func() {}, outage: o}
		delay := func(ctx context.Context, err error) time.Duration {
			began := time.Now()
			w.ended(ctx, err)
			return time.Since(began)
		}
		want := func(when string, got, from, to time.Duration) {
			t.Helper()
			if got < from || got > to {
				t.Errorf("%s: tried again after %v, want %v to %v", when, got, from, to)
			}
		}
		lost := errors.New("connect: connection refused")
		ask()
		want("the first failure", delay(t.Context(), lost), retryMin-retryPause, retryMin*3/2)
		for range 5 {
			delay(t.Context(), lost)
		}
		want("the seventh", delay(t.Context(), lost), retryMax-retryPause, retryMax*3/2)
		time.AfterFunc(time.Second, func() { next.refuses = false; ask() })
		want("another client is answered after a second", delay(t.Context(), lost), time.Second, time.Second)
		want("a failure while others are answered", delay(t.Context(), lost), retryMin-retryPause, retryMin*3/2)
		for range 6 {
			delay(t.Context(), apierrors.NewInternalError(lost))
		}
		want("the API server answers with errors", delay(t.Context(), apierrors.NewInternalError(lost)), retryMax-retryPause, retryMax*3/2)
		want("the version is too old", delay(t.Context(), apierrors.NewResourceExpired("too old")), 0, 0)
		time.Sleep(retryReset + time.Second)
		want("a failure long after", delay(t.Context(), apierrors.NewInternalError(lost)), retryMin-retryPause, retryMin*3/2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		want("the end of the process", delay(ctx, lost), 0, 0)
	})
}
