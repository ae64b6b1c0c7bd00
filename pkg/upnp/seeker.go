package upnp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A seeker searches for gateways on one side, for as long as some are needed.
type seeker struct {
	m       *Mapper
	side    side
	wake    chan struct{}
	cancel  context.CancelFunc
	problem string // why there is no gateway, or ""; guarded by m.mu
}

// run searches until ctx ends; gateways live as long as all.
func (s *seeker) run(ctx, all context.Context) {
	s.m.tasks.Go(func() { s.listen(ctx) })
	rest := s.m.pace.quick
	for {
		began := time.Now()
		err := s.search(ctx, all)
		if ctx.Err() != nil {
			return
		}
		any := s.m.reap(s.side)
		s.say(any, err)
		if any {
			rest = s.m.pace.slow
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.wake:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(began.Add(s.m.pace.apart))):
			}
		}
		timer.Stop()
		rest = min(2*rest, s.m.pace.slow)
	}
}

// search searches once. It fails if nobody could be asked.
func (s *seeker) search(ctx, all context.Context) error {
	own := s.m.own(s.side.link)
	list := sources(s.side, own)
	if len(list) == 0 {
		return errNoAddress
	}
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for i, from := range list {
		group.Go(func() {
			errs[i] = search(ctx, s.side, from, own, s.m.pace.answers, func(a answer) { s.m.found(all, s.side, a) })
		})
	}
	group.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// say keeps why there is no gateway.
func (s *seeker) say(any bool, err error) {
	problem := ""
	switch {
	case any:
	case err != nil:
		problem = err.Error()
	case len(s.m.o.Gateways) > 0:
		problem = "none of the gateways that upnp_gateways names answers on " + s.side.String()
	default:
		problem = "no UPnP gateway answers on " + s.side.String() + "; turn UPnP (IGD) on on the router"
	}
	s.m.mu.Lock()
	changed := s.problem != problem
	s.problem = problem
	s.m.mu.Unlock()
	if changed {
		s.m.o.Poke()
	}
}

// listen has a search begin when a gateway announces itself. Without it the next
// search is soon enough.
func (s *seeker) listen(ctx context.Context) {
	for {
		err := overhear(ctx, s.side, func() { poke(s.wake) })
		if ctx.Err() != nil {
			return
		}
		s.m.o.Log.Debug("not listening to the announcements of gateways", "link", s.side.link, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.m.pace.check):
		}
	}
}
