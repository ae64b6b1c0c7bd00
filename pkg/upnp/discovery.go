package upnp

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxGateways is how many gateways a segment may have: anybody on a LAN may claim to be one.
const maxGateways = 8

// A searched is a segment with its searches' results.
type searched struct {
	next     time.Time // when the next search begins
	gateways map[netip.Addr]*gateway
	problem  string // why there is no gateway, or ""
}

// found is the outcome of one search.
type found struct {
	segment   segment
	responses []response // one of each gateway
	refused   string     // why responses were refused, or ""
	err       error      // why no address could be searched from
}

// search begins a search on each segment that is due, and returns when the next is.
func (m *Mapper) search(ctx context.Context, searches *sync.WaitGroup) (next time.Time) {
	next = time.Now().Add(idle)
	for s := range m.want.Get().segments {
		m.mu.Lock()
		if m.segments[s] == nil {
			m.segments[s] = &searched{gateways: make(map[netip.Addr]*gateway)}
		}
		m.mu.Unlock()
		x := m.segments[s]
		if now := time.Now(); !now.Before(x.next) {
			wait := m.timing.period
			if len(x.gateways) == 0 {
				wait /= 3
			}
			x.next = now.Add(m.timing.responses + wait)
			searches.Go(func() {
				select {
				case m.found <- m.searchSegment(ctx, s):
				case <-ctx.Done():
				}
			})
		}
		next = earlier(next, x.next)
	}
	return next
}

// searchSegment searches once, from all source addresses at the same time.
func (m *Mapper) searchSegment(ctx context.Context, s segment) found {
	all := found{segment: s}
	var own []netip.Prefix
	for _, l := range m.o.Links() {
		if l.Name == s.link {
			own = l.Prefixes
		}
	}
	list := sourceAddrs(s, own)
	if len(list) == 0 {
		all.err = errNoAddress
		return all
	}
	each := make([]found, len(list))
	var group sync.WaitGroup
	for i, from := range list {
		group.Go(func() { each[i] = m.searchFrom(ctx, s, from, own) })
	}
	group.Wait()
	var errs []error
	for _, f := range each {
		all.responses = append(all.responses, f.responses...)
		all.refused = firstText(all.refused, f.refused)
		errs = append(errs, f.err)
	}
	if !slices.Contains(errs, nil) {
		all.err = errors.Join(errs...)
	}
	return all
}

func (m *Mapper) record(f found) {
	m.mu.Lock()
	x := m.segments[f.segment]
	problem := x.problem
	m.takeOver(x, f)
	x.problem = m.whyNone(x, f)
	m.mu.Unlock()
	if x.problem != "" && f.segment.family == vip.IPv4 { // most routers do nothing of the kind for IPv6
		m.metrics.failures.WithLabelValues(failNoGateway).Inc()
	}
	if x.problem != problem {
		m.o.Poke()
	}
}

func (m *Mapper) mayAsk(gateway netip.Addr) bool {
	return len(m.o.Gateways) == 0 || slices.Contains(m.o.Gateways, gateway)
}

// takeOver adds up to maxGateways that responded, and forgets unusable ones silent for three times timing.period.
func (m *Mapper) takeOver(x *searched, f found) {
	for _, r := range f.responses {
		if g := x.gateways[r.addr]; g != nil {
			g.seen, g.latest = time.Now(), g.at
		}
	}
	for _, r := range f.responses {
		switch g := x.gateways[r.addr]; {
		case g != nil && *r.location == *g.at.location: // another one, if there is, is tried if that fails
		case g != nil:
			g.latest = r
		case m.mayAsk(r.addr) && len(x.gateways) < maxGateways:
			x.gateways[r.addr] = newGateway(m, f.segment, r)
			m.metrics.gateways.Inc()
			m.o.Log.Info("found a gateway", "link", f.segment.link, "address", r.addr)
		}
	}
	for addr, g := range x.gateways {
		if g.problem != "" && time.Since(g.seen) > 3*m.timing.period {
			clear(g.entries)
			g.publish()
			delete(x.gateways, addr)
			m.metrics.gateways.Dec()
			m.o.Log.Info("a gateway is gone", "link", f.segment.link, "address", addr)
		}
	}
}

// whyNone returns why there is no gateway, or "" if there is one.
func (m *Mapper) whyNone(x *searched, f found) string {
	switch {
	case len(x.gateways) > 0:
		return ""
	case f.err != nil:
		return f.err.Error()
	case f.refused != "":
		return f.refused
	case len(m.o.Gateways) > 0:
		return "none of the gateways that upnp_gateways names answers on " + f.segment.String()
	}
	return "no UPnP gateway answers on " + f.segment.String() + "; turn UPnP (IGD) on on the router"
}
