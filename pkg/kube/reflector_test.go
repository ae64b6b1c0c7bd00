package kube

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRetryDelay: what is logged, and how long the API server is not asked, for each error that a reflector may see, again and again.
func TestRetryDelay(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	wrap := func(err error) error { return fmt.Errorf("failed to list: %w", err) }
	tests := []struct {
		name    string
		err     error
		delays  []time.Duration // of the first four, and of the hundredth
		warns   int
		refused bool
	}{
		{"nothing", nil, []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"no connection", errors.New("connection refused"), []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"cut off", io.ErrUnexpectedEOF, []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"version too old", wrap(apierrors.NewResourceExpired("too old")), []time.Duration{0, 0, 0, 0, 0}, 0, false},
		{"forbidden", wrap(apierrors.NewForbidden(services, "", errors.New("no"))),
			[]time.Duration{refusedMin, 2 * refusedMin, 4 * refusedMin, 8 * refusedMin, refusedMax}, 1, true},
		{"absent", wrap(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", services, "", "", 0, true)),
			[]time.Duration{refusedMin, 2 * refusedMin, missingRetry, missingRetry, missingRetry}, 0, true},
		{"unauthorized", wrap(apierrors.NewUnauthorized("who are you")), []time.Duration{0, 0, 0, 0, 0}, 1, false},
		{"broken", wrap(apierrors.NewInternalError(errors.New("etcd"))), []time.Duration{0, 0, 0, 0, 0}, 1, false},
		{"overloaded", wrap(apierrors.NewTooManyRequests("later", 1)), []time.Duration{0, 0, 0, 0, 0}, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &logBuffer{}
			s := &watchedResource{resource: "services", namespace: metav1.NamespaceDefault, log: j.logger()}
			for round := 1; round <= 2; round++ {
				for i := range 100 {
					delay := s.retryDelay(tt.err)
					if n := min(i, 4); (i < 4 || i == 99) && delay != tt.delays[n] {
						t.Errorf("round %d, error %d: delay %v, want %v", round, i+1, delay, tt.delays[n])
					}
					if i == failuresBeforeReport-2 && (j.count("level=WARN") != (round-1)*tt.warns || s.refused.Load()) {
						t.Errorf("round %d: reported after %d", round, i+1)
					}
				}
				if s.refused.Load() != tt.refused {
					t.Errorf("refused is %v, want %v", s.refused.Load(), tt.refused)
				}
				if got := j.count("level=WARN", "services in namespace default"); got != round*tt.warns {
					t.Errorf("round %d: %d warnings in all, want %d:\n%s", round, got, round*tt.warns, j)
				}
				s.succeeded()
				s.succeeded()
				if s.refused.Load() {
					t.Error("refused after it worked")
				}
				if got := j.count("level=INFO", "works now"); got != round*tt.warns {
					t.Errorf("round %d: logged %d times that it works, want %d", round, got, round*tt.warns)
				}
			}
		})
	}
}
