package upnp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
	"github.com/huin/goupnp/soap"
)

// A connection is a gateway's service that maps ports: one of three, with the
// same actions.
type connection interface {
	GetStatusInfoCtx(context.Context) (status, lastError string, uptime uint32, err error)
	GetExternalIPAddressCtx(context.Context) (string, error)
	GetSpecificPortMappingEntryCtx(ctx context.Context, remote string, external uint16, protocol string) (port uint16, client string, enabled bool, description string, lease uint32, err error)
	AddPortMappingCtx(ctx context.Context, remote string, external uint16, protocol string, port uint16, client string, enabled bool, description string, lease uint32) error
	DeletePortMappingCtx(ctx context.Context, remote string, external uint16, protocol string) error
}

// pinholes is the kind of service that opens the IPv6 firewall.
const pinholes = internetgateway2.URN_WANIPv6FirewallControl_1

// kinds are the services that map ports, the best first.
var kinds = []string{internetgateway2.URN_WANIPConnection_2, internetgateway2.URN_WANIPConnection_1, internetgateway2.URN_WANPPPConnection_1}

// known reports whether Herald can use a kind of service.
func known(kind string) bool { return kind == pinholes || slices.Contains(kinds, kind) }

// errUnreadable stands for an answer that is no SOAP, or not the one expected.
var errUnreadable = errors.New("its answer is not to be understood")

// call makes one request of a service from the address src, in bounded time.
func (l line) call(ctx context.Context, s service, src netip.Addr, f func(context.Context, goupnp.ServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestMost)
	defer cancel()
	var failed error
	client := goupnp.ServiceClient{
		SOAPClient: &soap.SOAPClient{EndpointURL: s.control, HTTPClient: l.client(src, replyMost, &failed)},
		RootDevice: &goupnp.RootDevice{}, Location: &url.URL{}, Service: &goupnp.Service{},
	}
	err := f(ctx, client)
	switch {
	case err == nil, code(err) != 0:
		return err
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}

// ports makes one request of a service that maps ports.
func (l line) ports(ctx context.Context, s service, src netip.Addr, f func(context.Context, connection) error) error {
	return l.call(ctx, s, src, func(ctx context.Context, c goupnp.ServiceClient) error {
		switch s.kind {
		case internetgateway2.URN_WANIPConnection_2:
			return f(ctx, &internetgateway2.WANIPConnection2{ServiceClient: c})
		case internetgateway2.URN_WANIPConnection_1:
			return f(ctx, &internetgateway2.WANIPConnection1{ServiceClient: c})
		}
		return f(ctx, &internetgateway2.WANPPPConnection1{ServiceClient: c})
	})
}

// holes makes one request of a service that opens the IPv6 firewall.
func (l line) holes(ctx context.Context, s service, src netip.Addr, f func(context.Context, *internetgateway2.WANIPv6FirewallControl1) error) error {
	return l.call(ctx, s, src, func(ctx context.Context, c goupnp.ServiceClient) error {
		return f(ctx, &internetgateway2.WANIPv6FirewallControl1{ServiceClient: c})
	})
}

// A lease is what a gateway has for an external port.
type lease struct {
	client      netip.Addr // zero if it names no address
	port        uint16
	description string
	left        time.Duration // 0: for ever
}

// lookup finds who has an external port; nil if nobody does. Some tell that only to who
// has it, so src is tried, too.
func (l line) lookup(ctx context.Context, s service, src netip.Addr, external uint16, protocol string) (*lease, error) {
	var found lease
	ask := func(ctx context.Context, c connection) error {
		port, client, _, description, left, err := c.GetSpecificPortMappingEntryCtx(ctx, "", external, protocol)
		found = lease{port: port, description: description, left: time.Duration(left) * time.Second}
		if a, err := netip.ParseAddr(client); err == nil {
			found.client = a.Unmap()
		}
		return err
	}
	err := l.ports(ctx, s, netip.Addr{}, ask)
	if code(err) == codeNotAuthorized {
		err = l.ports(ctx, s, src, ask)
	}
	if code(err) == codeNoMapping {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &found, nil
}

// external asks for the address that the gateway has on its far side. It is not
// valid if there is none at present.
func (l line) external(ctx context.Context, s service) (netip.Addr, error) {
	var a netip.Addr
	err := l.ports(ctx, s, netip.Addr{}, func(ctx context.Context, c connection) error {
		text, err := c.GetExternalIPAddressCtx(ctx)
		a, _ = netip.ParseAddr(text)
		return err
	})
	if code(err) == 501 { // miniupnpd's way to say that it has none
		return netip.Addr{}, nil
	}
	if a.IsUnspecified() {
		a = netip.Addr{}
	}
	return a.Unmap(), err
}

// choose finds the service for a family: of several that map ports the one that
// is connected, else the best.
func (l line) choose(ctx context.Context, d device, six bool) (service, error) {
	var fit []service
	for _, s := range d.services {
		if six == (s.kind == pinholes) {
			fit = append(fit, s)
		}
	}
	switch {
	case len(fit) == 0 && six:
		return service{}, errors.New("it has no control of its IPv6 firewall (WANIPv6FirewallControl), so IPv6 ports must be opened on the router by hand")
	case len(fit) == 0:
		return service{}, errors.New("it maps no ports (neither WANIPConnection nor WANPPPConnection)")
	}
	slices.SortStableFunc(fit, func(a, b service) int { return slices.Index(kinds, a.kind) - slices.Index(kinds, b.kind) })
	if len(fit) == 1 || six {
		return fit[0], nil
	}
	for _, s := range fit {
		status := ""
		_ = l.ports(ctx, s, netip.Addr{}, func(ctx context.Context, c connection) (err error) { // one that does not answer is not connected
			status, _, _, err = c.GetStatusInfoCtx(ctx)
			return err
		})
		if status == "Connected" {
			return s, nil
		}
	}
	return fit[0], nil
}
