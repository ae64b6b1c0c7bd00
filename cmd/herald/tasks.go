package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

// A task is a long-lived part of the process. It ends when ctx does.
type task interface {
	Run(ctx context.Context) error
	String() string
}

// tasks are those of a process, by when they begin and end.
type tasks struct {
	readers []task // change nothing before the agent has made a Plan
	// blocks until no other process has the name of this node (docs/why.md, "A second process"), or ctx ends
	awaitName func(context.Context) error
	others    []task // begin when it has returned nil, as do the leases and the agent
	leases    task
	agent     task
}

// run runs the tasks until ctx ends, or one of them fails, and returns the first error. Until no other process has
// its name only the readers run. The agent ends first: it needs all the others to hand over what this node carries.
// The readers end last, after the leases are released. But if the leases fail, all end at once: another process has
// taken the name, and this one must not act on its claims any more.
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
