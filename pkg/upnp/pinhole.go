package upnp

import (
	"context"
	"time"

	"github.com/huin/goupnp/dcps/internetgateway2"
)

// maxPinholeLease is the longest lease of a pinhole (WANIPv6FirewallControl, section 2.5.3).
const maxPinholeLease = 24 * time.Hour

// ensurePinhole makes the pinhole of e, or renews it if half of its lease is over. A gateway
// returns the same pinhole to whoever asks for it again (WANIPv6FirewallControl, section
// 2.5.3.2), so the next owner of a VIP takes it over without knowing its UniqueID.
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
	call := func(f func(context.Context, *internetgateway2.WANIPv6FirewallControl1) error) error {
		return g.control.callFirewall(ctx, g.service, w.Addr, f)
	}
	if e.Confirmed && e.pinholeKnown {
		renew := !time.Now().Before(e.renewAt)
		err := call(func(ctx context.Context, fw *internetgateway2.WANIPv6FirewallControl1) error {
			if renew {
				return fw.UpdatePinholeCtx(ctx, e.pinhole, seconds(lease))
			}
			_, err := fw.GetPinholePacketsCtx(ctx, e.pinhole)
			return err
		})
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
	err = call(func(ctx context.Context, fw *internetgateway2.WANIPv6FirewallControl1) (err error) {
		e.pinhole, err = fw.AddPinholeCtx(ctx, "", 0, w.Addr.String(), w.Port, protocol, seconds(lease))
		return err
	})
	if err != nil {
		e.Requested, e.Confirmed, e.pinholeKnown = false, false, false // without its UniqueID it can't be removed
		return err
	}
	e.pinholeKnown = true
	g.confirm(e, lease)
	return nil
}

// deletePinhole removes the pinhole of e, if the gateway has confirmed it.
func (g *gateway) deletePinhole(ctx context.Context, e *entry) error {
	if !e.Confirmed || !e.pinholeKnown {
		return nil
	}
	err := g.control.callFirewall(ctx, g.service, e.Addr,
		func(ctx context.Context, fw *internetgateway2.WANIPv6FirewallControl1) error {
			return fw.DeletePinholeCtx(ctx, e.pinhole)
		})
	if faultCode(err) == codeNoPinhole {
		return nil
	}
	return err
}
