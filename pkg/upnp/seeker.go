package upnp

import (
	"context"
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
		err := search(ctx, s.side, s.m.own(s.side.link), s.m.pace.answers, func(a answer) { s.m.found(all, s.side, a) })
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
