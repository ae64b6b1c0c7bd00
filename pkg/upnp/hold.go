package upnp

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/huin/goupnp/dcps/internetgateway2"

	"github.com/heraldvip/herald/pkg/vip"
)

// A takenError says that somebody else has an external port.
type takenError struct {
	port     uint16
	protocol string
	by       lease
}

func (e *takenError) Error() string {
	who := e.by.client.String()
	if !e.by.client.IsValid() {
		who = "another host"
	}
	return fmt.Sprintf("its port %d/%s belongs to %s port %d (%s); remove that on the router, or choose another port by %s",
		e.port, e.protocol, who, e.by.port, quote(e.by.description), portKey)
}

// errUnwilling begins what a gateway did not do although it did not say no.
var errUnwilling = errors.New("it can't be had")

// Descriptions, by which people and other nodes know whose a mapping is.
const (
	mark            = "herald "
	descriptionLong = 64 // what gateways are known to take
)

// describe is what a mapping is called on the gateway: "herald namespace/name (uid)".
func describe(m vip.Mapping) string {
	name, tag := m.Service.String(), ""
	if m.UID != "" {
		tag = " (" + m.UID[:min(8, len(m.UID))] + ")"
	}
	if room := descriptionLong - len(mark) - len(tag); len(name) > room {
		name = name[:room]
	}
	return mark + name + tag
}

// candidates are the external ports for m, the best first. They are the same on
// every node, so that the next owner of the VIP finds what the one before has made.
func (g *gateway) candidates(m vip.Mapping) []uint16 {
	if !m.Any {
		return []uint16{m.External}
	}
	const low, high, others = 20000, 60000, 7
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", m.Service, m.Protocol, m.Port)
	first, list := h.Sum64(), []uint16{m.External}
	for i := range uint64(others) {
		list = append(list, uint16(low+(first+i*7919)%(high-low)))
	}
	return slices.DeleteFunc(list, func(p uint16) bool { return g.m.o.Ports != nil && !g.m.o.Ports(p) })
}

// hold makes, finds again or renews a port mapping.
func (g *gateway) hold(ctx context.Context, j job) (state, error) {
	st := j.state
	if number(j.want.Protocol) == 0 {
		return st, fmt.Errorf("%w: UPnP opens TCP and UDP ports only, not %s", errUnwilling, j.want.Protocol)
	}
	list := g.candidates(j.want)
	if st.external != 0 { // where it was last
		list = append([]uint16{st.external}, slices.DeleteFunc(list, func(p uint16) bool { return p == st.external })...)
	}
	var free uint16
	var taken error = fmt.Errorf("%w: none of the ports that would do is allowed by upnp_ports", errUnwilling)
	for _, p := range list {
		have, err := g.line.lookup(ctx, g.service, j.want.Addr, p, j.want.Protocol)
		switch {
		case err != nil:
			return st, err
		case have == nil:
			if free == 0 {
				free = p
			}
		case have.client == j.want.Addr && have.port == j.want.Port:
			return g.keep(ctx, j, p, *have)
		case g.stale(j.want, *have):
			if err := g.line.delete(ctx, g.service, have.client, p, j.want.Protocol); err != nil {
				return st, err
			}
			return g.make(ctx, j, p)
		default:
			if free == 0 && p == list[0] {
				taken = &takenError{p, j.want.Protocol, *have}
			}
		}
	}
	if free == 0 {
		st.Made = false
		return st, taken
	}
	if st.Made {
		g.m.o.Log.Info("a gateway has lost a mapping; making it again", "gateway", g.name, "service", j.want.Service, "port", j.want.Port, "protocol", j.want.Protocol)
		j.state.Made, j.state.lost = false, st.lost+1
	}
	return g.make(ctx, j, free)
}

// stale reports whether what a gateway has was made for this very Service when it
// had another VIP.
func (g *gateway) stale(w vip.Mapping, have lease) bool {
	if w.UID == "" || have.description != describe(w) || !strings.HasPrefix(have.description, mark) {
		return false
	}
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	for _, x := range g.m.want { // the other VIP of one that has two
		if x.Addr == have.client && x.Service == w.Service {
			return false
		}
	}
	return true
}

// keep renews what the gateway has, if it is time to.
func (g *gateway) keep(ctx context.Context, j job, p uint16, have lease) (state, error) {
	st, now := j.state, time.Now()
	switch {
	case !st.Made || st.external != p: // another node's so far, or from before a restart
	case !st.renew.IsZero() && !now.Before(st.renew):
	case j.want.Lease > 0 && have.left == 0 && !g.permanent: // it was permanent
	case have.description != describe(j.want):
	default:
		st.lost = 0
		if have.left > 0 && !st.until.IsZero() {
			st.until = earlier(st.until, now.Add(have.left))
		}
		return st, nil
	}
	return g.make(ctx, j, p)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// make asks for a mapping, and looks whether it is there.
func (g *gateway) make(ctx context.Context, j job, p uint16) (state, error) {
	st, w := j.state, j.want
	ask := func(lease time.Duration) error {
		return g.line.ports(ctx, g.service, w.Addr, func(ctx context.Context, c connection) error {
			return c.AddPortMappingCtx(ctx, "", p, w.Protocol, w.Port, w.Addr.String(), true, describe(w), seconds(lease))
		})
	}
	lease := w.Lease
	if g.permanent {
		lease = 0
	}
	err := ask(lease)
	if code(err) == codeOnlyPermanentLease && lease != 0 {
		g.permanent, lease = true, 0
		err = ask(0)
	}
	if err != nil {
		return st, err
	}
	have, err := g.line.lookup(ctx, g.service, w.Addr, p, w.Protocol)
	switch {
	case err != nil:
		return st, err
	case have == nil:
		return st, fmt.Errorf("%w: the gateway says that it opened the port, but does not have it; another %s, such as 0, may help", errUnwilling, leaseKey)
	case have.client != w.Addr || have.port != w.Port:
		return st, &takenError{p, w.Protocol, *have}
	}
	g.m.meters.renewals.Inc()
	st.Made, st.external = true, p
	st.granted(lease, have.left)
	return st, nil
}

// granted notes for how long a mapping was asked for, and is given.
func (st *state) granted(asked, left time.Duration) {
	if left > 0 && (asked == 0 || left < asked) {
		asked = left
	}
	st.until, st.renew = time.Time{}, time.Time{}
	if asked > 0 {
		now := time.Now()
		st.until, st.renew = now.Add(asked), now.Add(asked/2)
	}
}

// remove removes a mapping that is still this one's.
func (g *gateway) remove(ctx context.Context, j job) error {
	p := j.state.external
	if p == 0 {
		p = j.want.External // a request may have been under way
	}
	if g.shared(j, p) {
		return nil
	}
	have, err := g.line.lookup(ctx, g.service, j.want.Addr, p, j.want.Protocol)
	if err != nil || have == nil || have.client != j.want.Addr || have.port != j.want.Port {
		return err
	}
	if err := g.line.delete(ctx, g.service, j.want.Addr, p, j.want.Protocol); err != nil {
		return err
	}
	// Some in secure mode say yes and do nothing.
	have, err = g.line.lookup(ctx, g.service, j.want.Addr, p, j.want.Protocol)
	if err == nil && have != nil && have.client == j.want.Addr && have.port == j.want.Port {
		err = fmt.Errorf("%w: the gateway says that it removed the mapping, but still has it", errUnwilling)
	}
	return err
}

// shared reports whether another mapping of this node's is the same on the gateway.
func (g *gateway) shared(j job, p uint16) bool {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	for _, e := range g.entries {
		if e != j.entry && e.gone.IsZero() && e.Made && e.external == p && e.want.Protocol == j.want.Protocol {
			return true
		}
	}
	return false
}

func (l line) delete(ctx context.Context, s service, src netip.Addr, p uint16, protocol string) error {
	err := l.ports(ctx, s, src, func(ctx context.Context, c connection) error {
		return c.DeletePortMappingCtx(ctx, "", p, protocol)
	})
	if code(err) == codeNoMapping {
		return nil
	}
	return err
}

// number is a protocol's (IANA), or 0.
func number(protocol string) uint16 {
	switch protocol {
	case "TCP":
		return 6
	case "UDP":
		return 17
	}
	return 0
}

// seconds is d as a gateway takes it.
func seconds(d time.Duration) uint32 {
	return uint32(min(int64(d.Round(time.Second)/time.Second), math.MaxUint32))
}

// holeMost is the longest lease of a pinhole (WANIPv6FirewallControl, section 2.5.3).
const holeMost = 24 * time.Hour

// open makes or renews a pinhole. Who asks for the same one again gets the same
// (section 2.5.3.2), so the next owner of a VIP takes it over without knowing it.
func (g *gateway) open(ctx context.Context, j job) (state, error) {
	st, w := j.state, j.want
	protocol := number(w.Protocol)
	if protocol == 0 {
		return st, fmt.Errorf("%w: UPnP opens TCP and UDP ports only, not %s", errUnwilling, w.Protocol)
	}
	lease := w.Lease
	if lease == 0 || lease > holeMost {
		lease = holeMost
	}
	call := func(f func(context.Context, *internetgateway2.WANIPv6FirewallControl1) error) error {
		return g.line.holes(ctx, g.service, w.Addr, f)
	}
	if st.Made && st.hole != 0 {
		renew := !time.Now().Before(st.renew)
		err := call(func(ctx context.Context, c *internetgateway2.WANIPv6FirewallControl1) error {
			if renew {
				return c.UpdatePinholeCtx(ctx, st.hole, seconds(lease))
			}
			_, err := c.GetPinholePacketsCtx(ctx, st.hole)
			return err
		})
		switch c := code(err); {
		case err == nil && renew:
			g.m.meters.renewals.Inc()
			st.granted(lease, 0)
			return st, nil
		case err == nil, !renew && (c == codeInvalidAction || c == codeNotImplemented): // it can't be asked
			return st, nil
		case c != codeNoPinhole && c != codeNotAuthorized:
			return st, err
		}
	}
	err := call(func(ctx context.Context, c *internetgateway2.WANIPv6FirewallControl1) (err error) {
		st.hole, err = c.AddPinholeCtx(ctx, "", 0, w.Addr.String(), w.Port, protocol, seconds(lease))
		return err
	})
	if err != nil {
		st.Made, st.hole = false, 0
		return st, err
	}
	g.m.meters.renewals.Inc()
	st.Made, st.external = true, w.Port
	st.granted(lease, 0)
	return st, nil
}

// close removes a pinhole.
func (g *gateway) close(ctx context.Context, j job) error {
	if !j.state.Made || j.state.hole == 0 {
		return nil
	}
	err := g.line.holes(ctx, g.service, j.want.Addr, func(ctx context.Context, c *internetgateway2.WANIPv6FirewallControl1) error {
		return c.DeletePinholeCtx(ctx, j.state.hole)
	})
	if code(err) == codeNoPinhole {
		return nil
	}
	return err
}
