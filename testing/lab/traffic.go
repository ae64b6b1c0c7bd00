package lab

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const holdAtOnce = 32

// HoldMany is Hold for n connections. If it fails none is left.
func (l *Lab) HoldMany(ctx context.Context, address string, n int) ([]*Held, error) {
	all := make([]*Held, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(holdAtOnce)
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = l.Hold(ctx, address)
			return err
		})
	}
	err := g.Wait()
	if err != nil {
		for _, h := range all {
			if h != nil {
				h.Close()
			}
		}
		return nil, err
	}
	return all, nil
}

// A TrafficReport says what happened on held connections.
type TrafficReport struct {
	Connections, Broken, Lines int
	Slowest                    time.Duration // answer
	First                      error         // of those that broke; nil if none did
}

// String is one line for logs.
func (r TrafficReport) String() string {
	s := fmt.Sprintf("%d of %d connections broken, %d lines answered, the slowest after %v", r.Broken, r.Connections,
		r.Lines, r.Slowest.Round(time.Millisecond))
	if r.First != nil {
		s += fmt.Sprintf("; the first that broke: %v", r.First)
	}
	return s
}

// Exchange begins to send a line on each connection each interval, and to wait for its echo. stop ends that, and
// returns what was seen; connections stay open, broken ones unused.
func Exchange(all []*Held, interval time.Duration) (stop func() TrafficReport) {
	var mu sync.Mutex // guards report
	report := TrafficReport{Connections: len(all)}
	var done sync.WaitGroup
	end := make(chan struct{})
	for i, h := range all {
		done.Go(func() {
			wait := interval * time.Duration(i) / time.Duration(len(all)) // not all at the same moment
			for {
				select {
				case <-end:
					return
				case <-time.After(wait):
				}
				wait = interval
				took, err := h.Ask()
				mu.Lock()
				if err != nil {
					if report.Broken++; report.First == nil {
						report.First = err
					}
					mu.Unlock()
					return
				}
				report.Lines++
				report.Slowest = max(report.Slowest, took)
				mu.Unlock()
			}
		})
	}
	return func() TrafficReport {
		close(end)
		done.Wait()
		return report
	}
}
