package upnp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

// A discovery searches for gateways on one segment, for as long as a mapping is wanted there.
type discovery struct {
	m       *Mapper
	segment segment
	soon    mailbox.Signal // search again
	cancel  context.CancelFunc
	problem atomic.Pointer[string] // why there is no gateway, or ""
}

func newDiscovery(m *Mapper, s segment) *discovery {
	d := &discovery{m: m, segment: s, soon: mailbox.NewSignal()}
	d.problem.Store(new(string))
	return d
}

// run searches until ctx ends. The gateways that it finds live until gatewaysCtx ends.
func (d *discovery) run(ctx, gatewaysCtx context.Context) {
	d.m.tasks.Go(func() { d.listen(ctx) })
	interval := d.m.timing.searchMin
	for {
		began := time.Now()
		err := d.search(ctx, gatewaysCtx)
		found := false
		d.m.do(ctx, func() {
			d.m.dropGateways(d.segment)
			found = d.m.countGateways(d.segment) > 0
		})
		if ctx.Err() != nil {
			return
		}
		d.report(found, err)
		if found {
			interval = d.m.timing.searchMax
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		case <-d.soon:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(began.Add(d.m.timing.searchGap))):
			}
		}
		interval = min(2*interval, d.m.timing.searchMax)
	}
}

// search searches once, from each source address. It fails if it could from none.
func (d *discovery) search(ctx, gatewaysCtx context.Context) error {
	own := d.m.ownPrefixes(d.segment.link)
	list := sourceAddrs(d.segment, own)
	if len(list) == 0 {
		return errNoAddress
	}
	found := func(r response) {
		d.m.do(ctx, func() { d.m.handleResponse(gatewaysCtx, d.segment, r) })
	}
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for i, from := range list {
		group.Go(func() { errs[i] = d.searchFrom(ctx, from, own, found) })
	}
	group.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// report publishes why there is no gateway, if none was found, and pokes if that has changed.
func (d *discovery) report(found bool, err error) {
	problem := ""
	switch {
	case found:
	case err != nil:
		problem = err.Error()
	case len(d.m.o.Gateways) > 0:
		problem = "none of the gateways that upnp_gateways names answers on " + d.segment.String()
	default:
		problem = "no UPnP gateway answers on " + d.segment.String() + "; turn UPnP (IGD) on on the router"
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
