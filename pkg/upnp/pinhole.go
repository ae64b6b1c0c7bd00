package upnp

import (
	"context"
	"fmt"
	"time"
)

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
	lease := w.Lease
	if lease == 0 || lease > maxPinholeLease {
		lease = maxPinholeLease
	}
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
		case c != codeNoPinhole && c != codeNotAuthorized:
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
