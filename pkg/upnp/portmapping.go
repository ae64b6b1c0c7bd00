package upnp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// A takenError: another host has an external port.
type takenError struct {
	port     uint16
	protocol string
	by       portMapping
}

func (e *takenError) Error() string {
	who := e.by.client.String()
	if !e.by.client.IsValid() {
		who = "another host"
	}
	return fmt.Sprintf("its port %d/%s belongs to %s port %d (%s); remove that on the router, or choose another port by %s",
		e.port, e.protocol, who, e.by.port, quote(e.by.description), portKey)
}

// errUnwilling: a gateway did not do what was asked, although it did not refuse.
var errUnwilling = errors.New("it can't be had")

// Descriptions, by which people and other nodes know whose a mapping is.
const (
	descriptionPrefix    = "herald "
	maxDescriptionLength = 64 // what gateways are known to accept
)

// mappingDescription is what a mapping is called on the gateway: "herald namespace/name (uid
// cluster)", with the marks of the Service and the cluster, as far as they are known.
func mappingDescription(m vip.Mapping) string {
	name, uid := m.Service.String(), ""
	switch {
	case m.UID != "" && m.Cluster != "":
		uid = " (" + mark(m.UID) + " " + mark(m.Cluster) + ")"
	case m.UID != "":
		uid = " (" + mark(m.UID) + ")"
	}
	if room := maxDescriptionLength - len(descriptionPrefix) - len(uid); len(name) > room {
		name = name[:room]
	}
	return descriptionPrefix + name + uid
}

// mark returns the beginning of a UID: its first eight characters.
func mark(uid string) string { return uid[:min(8, len(uid))] }

// marksOf returns the marks of the Service and the cluster in a mappingDescription, or "" and ""
// if there are not both.
func marksOf(description string) (uid, cluster string) {
	text, ok := strings.CutSuffix(description, ")")
	i := strings.LastIndex(text, " (")
	if !ok || i < 0 || !strings.HasPrefix(text, descriptionPrefix) {
		return "", ""
	}
	uid, cluster, ok = strings.Cut(text[i+2:], " ")
	if !ok || uid == "" || cluster == "" {
		return "", ""
	}
	return uid, cluster
}

// externalPorts are the external ports that will do for m, the best first. They are the
// same on every node, so that the next owner of the VIP finds what the one before has made.
func (g *gateway) externalPorts(m vip.Mapping) []uint16 {
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

// ensurePortMapping finds the port mapping of e on the gateway and renews it if it is time
// to, or else makes it at the first external port that is free, and that the gateway does not say to be
// another's when it is asked for it. If none is, it returns a takenError, or that answer, about the first.
func (g *gateway) ensurePortMapping(ctx context.Context, e *entry) error {
	if _, err := protocolNumber(e.want.Protocol); err != nil {
		return err
	}
	list := g.externalPorts(e.want)
	if e.external != 0 { // where it was last
		list = append([]uint16{e.external}, slices.DeleteFunc(list, func(p uint16) bool { return p == e.external })...)
	}
	var free []uint16
	var taken error = fmt.Errorf("%w: none of the ports that would do is allowed by upnp_ports", errUnwilling)
	for _, p := range list {
		have, _, err := g.control.getPortMapping(ctx, g.state.service, e.want.Addr, p, e.want.Protocol)
		switch {
		case err != nil:
			return err
		case have == nil:
			free = append(free, p)
		case leadsTo(have, e.want):
			return g.renewPortMapping(ctx, e, p, *have)
		case g.isStale(e.want, *have):
			if err := g.control.deletePortMapping(ctx, g.state.service, have.client, p, e.want.Protocol); err != nil {
				return err
			}
			return g.addPortMapping(ctx, e, p)
		default:
			if p == list[0] {
				taken = &takenError{p, e.want.Protocol, *have}
			}
		}
	}
	lost := e.confirmed
	e.confirmed = false
	if len(free) == 0 {
		return taken
	}
	if lost {
		g.m.o.Log.Info("a gateway has lost a mapping; making it again", "gateway", g.state.name, "service", e.want.Service, "port", e.want.Port, "protocol", e.want.Protocol)
		e.losses++
	}
	var first error
	for _, p := range free {
		err := g.addPortMapping(ctx, e, p)
		if c := faultCode(err); c != codeConflict && c != codeOtherMechanism {
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// leadsTo reports whether have, which may be nil, is the mapping w.
func leadsTo(have *portMapping, w vip.Mapping) bool {
	return have != nil && have.client == w.Addr && have.port == w.Port
}

// isStale reports whether what a gateway has was made for this very Service when it had
// another VIP.
func (g *gateway) isStale(w vip.Mapping, have portMapping) bool {
	if w.UID == "" || have.description != mappingDescription(w) {
		return false
	}
	for _, x := range g.want.mappings { // the other VIP of one that has two
		if x.Addr == have.client && x.Service == w.Service {
			return false
		}
	}
	return true
}

// renewPortMapping renews what the gateway has at an external port if that is not known to
// be this node's, or half of its lease is over, or its lease or description should be another and is not
// what the gateway made of the same request before: some cut descriptions short, or say of each lease that it is 0.
func (g *gateway) renewPortMapping(ctx context.Context, e *entry, external uint16, have portMapping) error {
	now, description := time.Now(), mappingDescription(e.want)
	before := portMapping{description: description, left: e.want.Lease}
	if e.asked == description {
		before = e.kept
	}
	switch {
	case !e.confirmed || e.external != external: // another node's so far, or from before a restart
	case !e.renewAt.IsZero() && !now.Before(e.renewAt):
	case e.want.Lease > 0 && have.left == 0 && !g.permanent && before.left != 0: // it was permanent
	case have.description != description && have.description != before.description:
	default:
		e.losses = 0
		if until := now.Add(have.left); have.left > 0 && until.Before(e.until) {
			e.until = until
		}
		return nil
	}
	return g.addPortMapping(ctx, e, external)
}

// addPortMapping asks for a mapping at an external port (AddPortMapping), and reads back
// whether it is there. One of which the gateway does not say that clearly is deleted at once.
func (g *gateway) addPortMapping(ctx context.Context, e *entry, external uint16) error {
	w := e.want
	add := func(lease time.Duration) error {
		return g.control.callWAN(ctx, g.state.service, w.Addr, func(ctx context.Context, wan wanConnection) error {
			return wan.AddPortMappingCtx(ctx, "", external, w.Protocol, w.Port, w.Addr.String(), true, mappingDescription(w), seconds(lease))
		})
	}
	lease := w.Lease
	if g.permanent {
		lease = 0
	}
	if !e.requested { // the VIP must stay for as long as the gateway may have a mapping, whatever becomes of the answer
		e.requested, e.external = true, external
		g.publish()
	}
	err := add(lease)
	if faultCode(err) == codeOnlyPermanentLease && lease != 0 {
		g.permanent, lease = true, 0
		err = add(0)
	}
	if err != nil {
		if faultCode(err) != 0 && !e.confirmed {
			e.requested, e.external = false, 0
		}
		return err
	}
	have, sure, err := g.control.getPortMapping(ctx, g.state.service, w.Addr, external, w.Protocol)
	switch {
	case err != nil:
		return err
	case have == nil:
		if !sure { // it may have it all the same
			if err := g.deleteUnseen(ctx, w, external); err != nil {
				return err
			}
			e.requested, e.confirmed, e.external = false, false, 0
		}
		return fmt.Errorf("%w: the gateway says that it opened the port, but does not have it; another %s, such as 0, may help", errUnwilling, leaseKey)
	case !leadsTo(have, w):
		return &takenError{external, w.Protocol, *have}
	}
	e.external, e.asked, e.kept = external, mappingDescription(w), *have
	if have.left > 0 && (lease == 0 || have.left < lease) {
		lease = have.left
	}
	g.confirm(e, lease)
	return nil
}

// confirm records that the gateway has e for the time of a lease; 0: for ever.
func (g *gateway) confirm(e *entry, lease time.Duration) {
	g.m.metrics.renewals.Inc()
	e.confirmed, e.until, e.renewAt = true, time.Time{}, time.Time{}
	if lease > 0 {
		now := time.Now()
		e.until, e.renewAt = now.Add(lease), now.Add(lease/2)
	}
}

// deleteUnseen deletes the mapping of w, for which this node has asked, at a gateway that does not say clearly whether it has it.
func (g *gateway) deleteUnseen(ctx context.Context, w vip.Mapping, external uint16) error {
	err := g.control.deletePortMapping(ctx, g.state.service, w.Addr, external, w.Protocol)
	if saysNothing(err) {
		return nil
	}
	return err
}

// deletePortMapping removes the mapping of e if the gateway still has it, or does not say clearly that it hasn't and was asked for it, and it does not
// serve another entry.
func (g *gateway) deletePortMapping(ctx context.Context, e *entry) error {
	w, external := e.want, e.external
	if external == 0 {
		external = w.External // a request may have been sent
	}
	for _, x := range g.entries {
		if x != e && x.removeSince.IsZero() && x.confirmed && x.external == external && x.want.Protocol == w.Protocol {
			return nil
		}
	}
	have, sure, err := g.control.getPortMapping(ctx, g.state.service, w.Addr, external, w.Protocol)
	switch {
	case err != nil:
		return err
	case !sure && e.requested:
		return g.deleteUnseen(ctx, w, external)
	case !leadsTo(have, w):
		return nil
	}
	if err := g.control.deletePortMapping(ctx, g.state.service, w.Addr, external, w.Protocol); err != nil {
		return err
	}
	// Some in secure mode say yes and do nothing.
	have, _, err = g.control.getPortMapping(ctx, g.state.service, w.Addr, external, w.Protocol)
	if err == nil && leadsTo(have, w) {
		err = fmt.Errorf("%w: the gateway says that it removed the mapping, but still has it", errUnwilling)
	}
	return err
}

// protocolNumber is the number of a protocol (IANA). One that UPnP can't map is an error.
func protocolNumber(protocol string) (uint16, error) {
	switch protocol {
	case "TCP":
		return unix.IPPROTO_TCP, nil
	case "UDP":
		return unix.IPPROTO_UDP, nil
	}
	return 0, fmt.Errorf("%w: UPnP opens TCP and UDP ports only, not %s", errUnwilling, protocol)
}

// seconds is d in seconds, as gateways accept it.
func seconds(d time.Duration) uint32 {
	return uint32(min(int64(d.Round(time.Second)/time.Second), math.MaxUint32))
}
