package upnp

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of one list of a gateway's mappings, since it may have any number and take its time.
const (
	maxListed   = 256
	listTimeout = 20 * time.Second
)

// A sweep is what a gateway remembers of its vip.MappingSweep.
type sweep struct {
	at       time.Time                // when the gateway is asked next; zero: there is no MappingSweep
	suspects map[listedMapping]bool   // what it had last time, of Services that are gone
	logged   map[listedMapping]string // why it did not remove these
}

// A listedMapping is a mapping that a gateway has, without what changes as time passes.
type listedMapping struct {
	external uint16
	protocol string
	portMapping
}

// Sweeps is the mailbox for where this node looks for mappings of Services that are gone. nil: nowhere.
func (m *Mapper) Sweeps() *mailbox.Mailbox[[]vip.MappingSweep] { return m.sweeps }

// sweepOf returns the MappingSweep of a segment, or nil. Pinholes need none: they end by
// themselves (maxPinholeLease).
func (m *Mapper) sweepOf(s segment) *vip.MappingSweep {
	for _, x := range m.sweeps.Get() {
		if s == (segment{x.Link, vip.IPv4}) {
			return &x
		}
	}
	return nil
}

// untilSweep returns the time until the gateway is to be asked for the mappings that it has: idle
// if it is not. The first time is timing.sweepAfter after that became this node's task.
func (g *gateway) untilSweep(now time.Time) time.Duration {
	if g.m.sweepOf(g.discovery.segment) == nil {
		g.sweep = sweep{}
		return idle
	}
	if g.sweep.at.IsZero() {
		g.sweep.at = now.Add(g.m.timing.sweepAfter)
	}
	return max(0, g.sweep.at.Sub(now))
}

// sweepMappings removes the mappings that bear this cluster's mark, are of no Service that asks
// for them, and were so the last time, too. If there are such for the first time, it is to be
// called again after timing.sweepAfter, otherwise after timing.sweepPeriod. It returns an
// error only if the gateway does not answer.
func (g *gateway) sweepMappings(ctx context.Context) error {
	g.sweep.at = time.Now().Add(g.m.timing.sweepPeriod)
	list, err := g.control.listPortMappings(ctx, g.state.service)
	if err != nil {
		return err
	}
	gone := make(map[listedMapping]bool)
	for _, x := range list {
		switch {
		case !g.isGone(x):
		case !g.sweep.suspects[x]:
			gone[x] = true
			g.sweep.at = time.Now().Add(g.m.timing.sweepAfter)
		default:
			if err := g.removeGone(ctx, x); err != nil {
				return err
			}
			gone[x] = true
		}
	}
	g.sweep.suspects = gone
	return nil
}

// isGone reports whether x bears this cluster's mark, no Service with the UID in its mark asks
// for that port to be opened, and no Mapping leads where it leads.
func (g *gateway) isGone(x listedMapping) bool {
	s := g.m.sweepOf(g.discovery.segment)
	uid, cluster := marksOf(x.description)
	if s == nil || cluster == "" || cluster != mark(s.Cluster) {
		return false
	}
	for _, w := range g.m.want.Get().mappings {
		if w.Protocol == x.protocol && leadsTo(&x.portMapping, w) {
			return false
		}
	}
	return !slices.ContainsFunc(s.Keep, func(k vip.ForwardedPort) bool {
		return mark(k.UID) == uid && k.Protocol == x.protocol && k.Port == x.port
	})
}

// removeGone removes x, and logs that, or once why the gateway refuses to: one in secure mode
// lets only the host do so to which x leads, and that was the VIP. It returns an error only if
// the gateway does not answer.
func (g *gateway) removeGone(ctx context.Context, x listedMapping) error {
	log := g.m.o.Log.With("gateway", g.state.name, "port", x.external, "protocol", x.protocol, "to", x.client, "description", printable(x.description, maxDescriptionLength))
	err := g.control.deletePortMapping(ctx, g.state.service, x.client, x.external, x.protocol)
	switch {
	case err == nil:
		log.Info("removed the port mapping of a Service that is gone")
	case failureReason(err) == failUnreachable:
		return err
	case g.sweep.logged[x] != explain(err):
		if len(g.sweep.logged) >= maxListed || g.sweep.logged == nil {
			g.sweep.logged = make(map[listedMapping]string)
		}
		g.sweep.logged[x] = explain(err)
		log.Warn("the port mapping of a Service that is gone can't be removed; remove it on the router", "err", explain(err))
	}
	return nil
}

// listPortMappings returns the mappings that a gateway has, maxListed at most. One that refuses
// to list them has none; what it answers before it refuses, or before listTimeout, counts.
func (c controlPoint) listPortMappings(ctx context.Context, s service) (list []listedMapping, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for i := range uint16(maxListed) {
		var x listedMapping
		err := c.callWAN(ctx, s, netip.Addr{}, func(ctx context.Context, wan wanConnection) error {
			_, external, protocol, port, client, _, description, _, err := wan.GetGenericPortMappingEntryCtx(ctx, i)
			x = listedMapping{external, strings.ToUpper(protocol), portMapping{client: parseAddr(client), port: port, description: description}}
			return err
		})
		switch {
		case faultCode(err) != 0, errors.Is(err, errUnreadable), err != nil && ctx.Err() != nil: // 713 after the last (WANIPConnection:2 section 2.5.18)
			return list, nil
		case err != nil:
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}
