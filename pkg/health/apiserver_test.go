package health

import (
	"context"
	"errors"
	"github.com/heraldvip/herald/testing/check"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAPIServerReadiness walks through the life of an API server: what Changed is called with, and when.
func TestAPIServerReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		within := func(from, to float64) bool {
			s := time.Since(start).Seconds()
			return s >= from && s < to
		}
		var reported []string
		a := NewAPIServerCheck(APIServerOptions{
			Period: time.Second, Timeout: 2 * time.Second, FailureThreshold: 3,
			Log: slog.New(slog.DiscardHandler),
			Ask: func(ctx context.Context) error {
				switch {
				case within(0, 10), within(20.5, 22), within(30.5, 40):
					return errors.New("refused")
				case within(50.5, 70): // hangs
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			},
			Changed: func(ready bool) {
				text := "not ready"
				if ready {
					text = "ready"
				}
				reported = append(reported, text+" at "+time.Since(start).String())
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 80*time.Second)
		defer cancel()
		check.OK(t, a.Run(ctx))
		want := []string{
			"ready at 10s",     // noticed at the next quarter of a second
			"not ready at 33s", // the third failure; two at 21 s and 22 s were too few
			"ready at 40s",     //
			"not ready at 57s", // three requests that got no answer in 2 s each
			"ready at 1m11s",   // the one under way at 70 s gets none either
		}
		if !slices.Equal(reported, want) {
			t.Errorf("reported %q\nwant %q", reported, want)
		}
	})
}
