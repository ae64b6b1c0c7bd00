package kube

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/testing/check"
)

// A hangingTransport answers at once, or not before the request is cancelled.
type hangingTransport struct{ hangs bool }

func (h *hangingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !h.hangs {
		return &http.Response{StatusCode: 200}, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestHungAPIServer: herald_api_reachable is 0 some seconds after the last answer of a server that accepts requests
// and answers none, and not for one slow answer.
func TestHungAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, next := newMetrics(), &hangingTransport{}
		l := &countingTransport{next: next, metrics: m, log: slog.New(slog.DiscardHandler)}
		ask := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "PUT",
				"https://192.0.2.1:6443/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/herald-node-n1", nil)
			_, _ = l.RoundTrip(r)
		}
		want := func(when string, value float64) {
			t.Helper()
			r := prometheus.NewRegistry()
			r.MustRegister(m.reachable)
			families, err := r.Gather()
			check.OK(t, err)
			if got := families[0].Metric[0].GetGauge().GetValue(); got != value {
				t.Errorf("%s: herald_api_reachable is %v, want %v", when, got, value)
			}
		}
		ask()
		want("answered", 1)
		next.hangs = true
		ask()
		want("one request was slow", 1)
		ask()
		ask()
		want("no answer for 6 s", 0)
		next.hangs = false
		ask()
		want("answered again", 1)
	})
}
