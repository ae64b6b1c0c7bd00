package upnp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	return fmt.Sprintf("its port %d/%s belongs to %s port %d (%s); remove that on the router, or choose another port "+
		"by %s",
		e.port, e.protocol, who, e.by.port, quote(e.by.description), portKey)
}

// errUnwilling: a gateway neither did what was asked, nor refused.
var errUnwilling = errors.New("it can't be had")

// Descriptions, by which people and nodes know whose a mapping is.
const (
	descriptionPrefix    = "herald "
	maxDescriptionLength = 64 // what gateways are known to accept
)

// mappingDescription is "herald namespace/name (uid)", with eight characters of the UID.
func mappingDescription(m vip.Mapping) string {
	name, uid := m.Service.String(), ""
	if m.UID != "" {
		uid = " (" + m.UID[:min(8, len(m.UID))] + ")"
	}
	if room := maxDescriptionLength - len(descriptionPrefix) - len(uid); len(name) > room {
		name = name[:room]
	}
	return descriptionPrefix + name + uid
}

// ensurePortMapping finds e's mapping, and renews it if due, or makes it; a takenError if another host has the port.
func (g *gateway) ensurePortMapping(ctx context.Context, e *entry) error {
	w := e.Mapping
	if _, err := protocolNumber(w.Protocol); err != nil {
		return err
	}
	have, err := g.control.getPortMapping(ctx, g.service, w)
	switch {
	case err != nil:
		return err
	case leadsTo(have, w):
		return g.renewPortMapping(ctx, e, *have)
	case have != nil && !g.isStale(w, *have):
		e.Confirmed = false
		return &takenError{w.External, w.Protocol, *have}
	case have != nil:
		if err := g.control.deletePortMapping(ctx, g.service, have.client, w); err != nil {
			return err
		}
	case e.Confirmed:
		g.m.o.Log.Info("a gateway has lost a mapping; making it again", "gateway", g.name, "service", w.Service,
			"port", w.Port, "protocol", w.Protocol)
		e.losses++
	}
	e.Confirmed = false
	return g.addPortMapping(ctx, e)
}

// leadsTo reports whether have, maybe nil, is the mapping w.
func leadsTo(have *portMapping, w vip.Mapping) bool {
	return have != nil && have.client == w.Addr && have.port == w.Port
}

// isStale reports whether a mapping was made for this very Service under another VIP, or to another port.
func (g *gateway) isStale(w vip.Mapping, have portMapping) bool {
	if w.UID == "" || have.description != mappingDescription(w) {
		return false
	}
	for _, x := range g.want.mappings { // the other VIP of one that has two
		if x.Addr != w.Addr && x.Addr == have.client && x.Service == w.Service {
			return false
		}
	}
	return true
}

// renewPortMapping renews a mapping not known to be this node's, past half of its lease, or with another lease or
// description. What the gateway made of the same request is no reason: some cut descriptions, or say of each lease that
// it is 0.
func (g *gateway) renewPortMapping(ctx context.Context, e *entry, have portMapping) error {
	now, description := time.Now(), mappingDescription(e.Mapping)
	before := portMapping{description: description, left: e.Lease}
	if e.asked == description {
		before = e.kept
	}
	switch {
	case !e.Confirmed: // another node's so far, or from before a restart
	case !e.renewAt.IsZero() && !now.Before(e.renewAt):
	case e.Lease > 0 && have.left == 0 && before.left != 0: // it was permanent
	case have.description != description && have.description != before.description:
	default:
		e.losses = 0
		if have.left > 0 {
			e.Until = vip.Earlier(e.Until, now.Add(have.left))
		}
		return nil
	}
	return g.addPortMapping(ctx, e)
}

// addPortMapping asks for e (AddPortMapping), and reads it back.
func (g *gateway) addPortMapping(ctx context.Context, e *entry) error {
	w, lease := e.Mapping, e.Lease
	if !e.Requested { // the VIP must stay for as long as the gateway may have a mapping, whatever becomes of the answer
		e.Requested = true
		g.publish()
	}
	err := g.control.addPortMapping(ctx, g.service, w, lease)
	switch code := faultCode(err); {
	case lease == 0:
	case code == codeOnlyPermanentLease, code == codeInvalidArgs, code == codeActionFailed: // the last two for the first
		err, lease = g.control.addPortMapping(ctx, g.service, w, 0), 0
	}
	if err != nil {
		e.Requested = e.Confirmed || faultCode(err) == 0
		return err
	}
	have, err := g.control.getPortMapping(ctx, g.service, w)
	switch {
	case err != nil:
		return err
	case have == nil:
		return fmt.Errorf("%w: the gateway says that it opened the port, but does not have it; another %s, such as 0, "+
			"may help",
			errUnwilling, leaseKey)
	case !leadsTo(have, w):
		return &takenError{w.External, w.Protocol, *have}
	}
	e.asked, e.kept = mappingDescription(w), *have
	if have.left > 0 && (lease == 0 || have.left < lease) {
		lease = have.left
	}
	g.confirm(e, lease)
	return nil
}

// confirm records that the gateway has e with a lease; 0: for ever. If it was to have one, that is asked for again: why
// the gateway refused it is not sure.
func (g *gateway) confirm(e *entry, lease time.Duration) {
	g.m.metrics.renewals.Inc()
	now := time.Now()
	e.Confirmed, e.Until, e.renewAt = true, time.Time{}, time.Time{}
	if lease > 0 {
		e.Until = now.Add(lease)
	}
	if lease = cmp.Or(lease, e.Lease); lease > 0 {
		e.renewAt = now.Add(lease / 2)
	}
}

func (g *gateway) deletePortMapping(ctx context.Context, e *entry) error {
	w := e.Mapping
	have, err := g.control.getPortMapping(ctx, g.service, w)
	if err != nil || !leadsTo(have, w) {
		return err
	}
	if err := g.control.deletePortMapping(ctx, g.service, w.Addr, w); err != nil {
		return err
	}
	// Some in secure mode say yes and do nothing.
	have, err = g.control.getPortMapping(ctx, g.service, w)
	if err == nil && leadsTo(have, w) {
		err = fmt.Errorf("%w: the gateway says that it removed the mapping, but still has it", errUnwilling)
	}
	return err
}

// protocolNumber is a protocol's number (IANA); an error if UPnP can't map it.
func protocolNumber(protocol string) (uint16, error) {
	switch protocol {
	case "TCP":
		return unix.IPPROTO_TCP, nil
	case "UDP":
		return unix.IPPROTO_UDP, nil
	}
	return 0, fmt.Errorf("%w: UPnP opens TCP and UDP ports only, not %s", errUnwilling, protocol)
}

func seconds(d time.Duration) string {
	return fmt.Sprint(min(int64(d.Round(time.Second)/time.Second), math.MaxUint32))
}

// maxPinholeLease is the longest lease of a pinhole (WANIPv6FirewallControl, section 2.5.3).
const maxPinholeLease = 24 * time.Hour

// ensurePinhole makes the pinhole of e, or renews it after half of its lease. Gateways return the same one to whoever
// asks again (WANIPv6FirewallControl, section 2.5.3.2), so a VIP's next owner needs no UniqueID.
func (g *gateway) ensurePinhole(ctx context.Context, e *entry) error {
	w := e.Mapping
	protocol, err := protocolNumber(w.Protocol)
	if err != nil {
		return err
	}
	lease := min(cmp.Or(w.Lease, maxPinholeLease), maxPinholeLease)
	call := func(action string, args ...string) (document, error) {
		return g.control.invoke(ctx, g.service, w.Addr, action, args...)
	}
	if id := fmt.Sprint(e.pinhole); e.Confirmed && e.pinholeKnown {
		renew := !time.Now().Before(e.renewAt)
		if renew {
			_, err = call("UpdatePinhole", "UniqueID", id, "NewLeaseTime", seconds(lease))
		} else {
			_, err = call("GetPinholePackets", "UniqueID", id)
		}
		switch c := faultCode(err); {
		case err == nil && renew:
			g.confirm(e, lease)
			return nil
		case err == nil, !renew && (c == codeInvalidAction || c == codeNotImplemented): // it can't be asked
			return nil
		case c == 0, !renew && c != codeNoPinhole && c != codeNotAuthorized: // what isn't renewed is asked for anew
			return err
		}
	}
	e.Requested = true
	d, err := call("AddPinhole", "RemoteHost", "", "RemotePort", "0", "InternalClient", w.Addr.String(), "InternalPort",
		fmt.Sprint(w.Port), "Protocol", fmt.Sprint(protocol), "LeaseTime", seconds(lease))
	id, unreadable := d.number("uniqueid", 16)
	if err == nil {
		err = unreadable
	}
	if err != nil {
		e.Requested, e.Confirmed, e.pinholeKnown = false, false, false // without its UniqueID it can't be removed
		return err
	}
	for _, x := range g.entries { // after its restart a gateway gives UniqueIDs again
		x.pinholeKnown = x.pinholeKnown && x.pinhole != uint16(id)
	}
	e.pinhole, e.pinholeKnown = uint16(id), true
	g.confirm(e, lease)
	return nil
}

// deletePinhole removes a confirmed pinhole.
func (g *gateway) deletePinhole(ctx context.Context, e *entry) error {
	if !e.Confirmed || !e.pinholeKnown {
		return nil
	}
	_, err := g.control.invoke(ctx, g.service, e.Addr, "DeletePinhole", "UniqueID", fmt.Sprint(e.pinhole))
	if faultCode(err) == codeNoPinhole {
		return nil
	}
	return err
}
