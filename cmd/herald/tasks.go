package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

type task interface {
	Run(ctx context.Context) error
	String() string
}

type tasks struct {
	readers []task // change nothing before the agent has made a Plan
	// blocks until no other process has this node's name (docs/why.md, "A second process"), or ctx ends
	awaitName func(context.Context) error
	others    []task // begin when it has returned nil, as do the leases and the agent
	leases    task
	agent     task
}

// run runs the tasks until ctx ends, or one fails, and returns the first error. Until the name is its own only readers
// run. The agent ends first: its handover needs the others. The readers end last, after the leases are released. But if
// the leases fail, all end at once: another process has the name.
func (x tasks) run(ctx context.Context, log *slog.Logger) error {
	var group errgroup.Group
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	rest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	start := func(ctx context.Context, tasks ...task) {
		for _, t := range tasks {
			group.Go(func() error {
				if err := t.Run(ctx); err != nil {
					cancel()
					return fmt.Errorf("%s: %w", t, err)
				}
				return nil
			})
		}
	}
	start(reading, x.readers...)
	if err := x.awaitName(first); err != nil {
		stopReading()
		return group.Wait()
	}
	start(rest, x.others...)
	group.Go(func() error {
		defer cancel()
		defer stop()
		defer stopReading() // they release by what the caches show
		if err := x.leases.Run(rest); err != nil {
			return fmt.Errorf("%s: %w", x.leases, err)
		}
		return nil
	})
	group.Go(func() error {
		defer stop()
		began := time.Now()
		err := x.agent.Run(first)
		log.Info("herald stops: this node carries no VIP any more", "ran", time.Since(began).Round(time.Second))
		return err
	})
	return group.Wait()
}
