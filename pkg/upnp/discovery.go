package upnp

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// maxGateways is how many gateways there may be on one segment: anybody on a LAN may claim to be one.
const maxGateways = 8

// A discovery searches for the gateways on one segment.
type discovery struct {
	m        *Mapper
	segment  segment
	changed  mailbox.Signal                          // other mappings are wanted
	soon     mailbox.Signal                          // search again
	problem  atomic.Pointer[string]                  // why there is no gateway, or ""
	gateways atomic.Pointer[map[netip.Addr]*gateway] // written by run, never changed afterwards
	refused  string                                  // why responses to the last search were refused, or ""; of run's goroutine
}

func newDiscovery(m *Mapper, s segment) *discovery {
	d := &discovery{m: m, segment: s, changed: mailbox.NewSignal(), soon: mailbox.NewSignal()}
	d.problem.Store(new(string))
	d.gateways.Store(&map[netip.Addr]*gateway{})
	return d
}

// wanted reports whether a mapping is wanted on the segment, or those of Services that are gone
// are to be looked for there.
func (d *discovery) wanted() bool {
	return d.m.want.Get().segments[d.segment] || d.m.sweepOf(d.segment) != nil
}

// run searches whenever the segment is wanted, until ctx ends.
func (d *discovery) run(ctx context.Context) {
	for ctx.Err() == nil {
		if d.wanted() {
			d.searchWhileWanted(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case <-d.changed:
		}
	}
}

// searchWhileWanted searches until the segment is not wanted, or ctx ends: each
// timing.searchMax once there is a gateway, and early when one announces itself or fails.
func (d *discovery) searchWhileWanted(ctx context.Context) {
	listenCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.m.tasks.Go(func() { d.listen(listenCtx) })
	for interval := d.m.timing.searchMin; ; interval = min(2*interval, d.m.timing.searchMax) {
		began := time.Now()
		err := d.search(ctx)
		if ctx.Err() != nil {
			return
		}
		d.dropGateways()
		if len(*d.gateways.Load()) > 0 {
			interval = d.m.timing.searchMax
		}
		d.report(err)
		next := time.After(interval)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-d.changed:
				if !d.wanted() {
					return
				}
			case <-d.soon:
				next = time.After(time.Until(began.Add(d.m.timing.searchGap)))
			case <-next:
				waiting = false
			}
		}
	}
}

// search searches once, from each source address. It fails if it could from none.
func (d *discovery) search(ctx context.Context) error {
	own := d.ownPrefixes()
	list := sourceAddrs(d.segment, own)
	if len(list) == 0 {
		return errNoAddress
	}
	errs, refused, found := make([]error, len(list)), make([]string, len(list)), make(chan response)
	var group sync.WaitGroup
	for i, from := range list {
		group.Go(func() { refused[i], errs[i] = d.searchFrom(ctx, from, own, func(r response) { found <- r }) })
	}
	go func() {
		group.Wait()
		close(found)
	}()
	for r := range found {
		d.handleResponse(ctx, r)
	}
	d.refused = ""
	for _, why := range refused {
		d.refused = firstText(d.refused, why)
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// ownPrefixes is the link's own addresses.
func (d *discovery) ownPrefixes() []netip.Prefix {
	for _, l := range d.m.o.Links() {
		if l.Name == d.segment.link {
			return l.Prefixes
		}
	}
	return nil
}

// handleResponse hands a response to its gateway, which is started if it is new. One that
// Options.Gateways does not name, or one too many, is ignored.
func (d *discovery) handleResponse(ctx context.Context, r response) {
	gateways := *d.gateways.Load()
	if g := gateways[r.addr]; g != nil {
		g.seen = time.Now()
		g.responses.Put(&r)
		return
	}
	if !d.mayAsk(r.addr) || len(gateways) >= maxGateways {
		return
	}
	g := newGateway(d, &r)
	gateways = maps.Clone(gateways)
	gateways[r.addr] = g
	d.gateways.Store(&gateways)
	d.m.metrics.gateways.Inc()
	d.m.o.Log.Info("found a gateway", "link", d.segment.link, "address", r.addr)
	inner, cancel := context.WithCancel(ctx)
	g.cancel = cancel
	d.m.tasks.Go(func() { g.run(inner) })
}

// mayAsk reports whether Options.Gateways allows to ask the gateway at an address.
func (d *discovery) mayAsk(gateway netip.Addr) bool {
	return len(d.m.o.Gateways) == 0 || slices.Contains(d.m.o.Gateways, gateway)
}

// dropGateways forgets the gateways that can't be used and have not responded for three
// times timing.searchMax.
func (d *discovery) dropGateways() {
	gateways := maps.Clone(*d.gateways.Load())
	maps.DeleteFunc(gateways, func(addr netip.Addr, g *gateway) bool {
		if g.published.Load().problem == "" || time.Since(g.seen) <= 3*d.m.timing.searchMax {
			return false
		}
		d.m.o.Log.Info("a gateway is gone", "link", d.segment.link, "address", addr)
		d.m.metrics.gateways.Dec()
		g.cancel()
		return true
	})
	d.gateways.Store(&gateways)
}

// report publishes why there is no gateway, if there is none, and pokes if that has
// changed. err is why it could not be searched. While an IPv4 port is to be opened that counts as a failure.
func (d *discovery) report(err error) {
	problem := ""
	switch {
	case len(*d.gateways.Load()) > 0:
	case err != nil:
		problem = err.Error()
	case d.refused != "":
		problem = d.refused
	case len(d.m.o.Gateways) > 0:
		problem = "none of the gateways that upnp_gateways names answers on " + d.segment.String()
	default:
		problem = "no UPnP gateway answers on " + d.segment.String() + "; turn UPnP (IGD) on on the router"
	}
	if problem != "" && d.segment.family == vip.IPv4 && d.m.want.Get().segments[d.segment] {
		d.m.metrics.failures.WithLabelValues(failNoGateway).Inc()
	}
	if *d.problem.Swap(&problem) != problem {
		d.m.o.Poke()
	}
}

// listen has a search begin when a gateway announces itself (NOTIFY), until ctx ends. If
// the announcements can't be received, that waits for the next search.
func (d *discovery) listen(ctx context.Context) {
	for {
		err := listenForNotify(ctx, d.segment, d.soon.Send)
		if ctx.Err() != nil {
			return
		}
		d.m.o.Log.Debug("not listening to the announcements of gateways", "link", d.segment.link, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.m.timing.verify):
		}
	}
}
