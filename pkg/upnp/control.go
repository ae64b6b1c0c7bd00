package upnp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
	"github.com/huin/goupnp/soap"

	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of a request.
const (
	maxReply       = 64 << 10 // bytes
	requestTimeout = 4 * time.Second
	// vipConnectTimeout is how long a connection from the VIP may take; what the gateway
	// answers is lost where it still has another host's MAC address for the VIP.
	vipConnectTimeout = 1500 * time.Millisecond
)

var errRedirect = errors.New("the gateway sends the request elsewhere; that is refused")

// A controlPoint sends requests to one gateway: at its address on its link, and nowhere else.
type controlPoint struct {
	link string
	addr netip.Addr // of the gateway
}

// httpClient makes HTTP requests to the gateway, from the address src if this node
// has it, else from its own. It follows no redirect, keeps no connection, and reads max
// bytes of a reply at most. If there is no reply, it stores why in failed.
func (c controlPoint) httpClient(src netip.Addr, max int64, failed *error) http.Client {
	return http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { *failed = errRedirect; return errRedirect },
		Transport: limitedTransport{max, failed, &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return c.dial(ctx, src, address) },
		}},
	}
}

// dial connects to address, a port of the gateway; another host is refused (docs/why.md, "UPnP").
// If that can't be done from src, which is the VIP, it is done from the node's own address (docs/why.md, "UPnP").
func (c controlPoint) dial(ctx context.Context, src netip.Addr, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if parseAddr(host) != c.addr {
		return nil, fmt.Errorf("the gateway at %s names %s, which is another host; that is refused", c.addr, quote(host))
	}
	to := c.addr
	if to.IsLinkLocalUnicast() {
		to = to.WithZone(c.link)
	}
	address = net.JoinHostPort(to.String(), port)
	var control func(string, string, syscall.RawConn) error = bindToLink(c.link)
	if src.IsValid() {
		d := net.Dialer{Timeout: vipConnectTimeout, Control: control, LocalAddr: &net.TCPAddr{IP: src.AsSlice()}}
		if conn, err := d.DialContext(ctx, "tcp", address); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	d := net.Dialer{Control: control}
	return d.DialContext(ctx, "tcp", address)
}

// parseAddr reads the address of a host, without a zone; it is not valid if text is none.
func parseAddr(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a.Unmap().WithZone("")
}

// limitedTransport has reading a reply fail after max bytes, and stores why there was none: the
// SOAP library keeps only the text of the error.
type limitedTransport struct {
	max    int64
	failed *error
	next   http.RoundTripper
}

func (t limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err != nil {
		*t.failed = err
		return nil, err
	}
	response.Body = http.MaxBytesReader(nil, response.Body, t.max)
	return response, nil
}

// A wanConnection is a gateway's service that maps ports: one of three, with the same
// actions (WANIPConnection:2 section 2.5).
type wanConnection interface {
	GetStatusInfoCtx(context.Context) (status, lastError string, uptime uint32, err error)
	GetExternalIPAddressCtx(context.Context) (string, error)
	GetSpecificPortMappingEntryCtx(ctx context.Context, remote string, external uint16, protocol string) (
		port uint16, client string, enabled bool, description string, lease uint32, err error)
	AddPortMappingCtx(ctx context.Context, remote string, external uint16, protocol string,
		port uint16, client string, enabled bool, description string, lease uint32) error
	DeletePortMappingCtx(ctx context.Context, remote string, external uint16, protocol string) error
}

// urnFirewall is the type of the service that opens the IPv6 firewall.
const urnFirewall = internetgateway2.URN_WANIPv6FirewallControl_1

// wanConnectionURNs are the types of services that map ports, the best first.
var wanConnectionURNs = []string{internetgateway2.URN_WANIPConnection_2, internetgateway2.URN_WANIPConnection_1,
	internetgateway2.URN_WANPPPConnection_1}

// isKnownService reports whether Herald can use a type of service.
func isKnownService(urn string) bool {
	return urn == urnFirewall || slices.Contains(wanConnectionURNs, urn)
}

// errUnreadable: a reply is no SOAP, or not the one expected.
var errUnreadable = errors.New("its answer is not to be understood")

// call makes one request of a service from the address src, which takes requestTimeout at
// most. It returns a refusal, errUnreadable, or why there was no reply.
func (c controlPoint) call(ctx context.Context, s service, src netip.Addr,
	f func(context.Context, goupnp.ServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var failed error
	client := goupnp.ServiceClient{
		SOAPClient: &soap.SOAPClient{EndpointURL: s.control, HTTPClient: c.httpClient(src, maxReply, &failed)},
		RootDevice: &goupnp.RootDevice{}, Location: &url.URL{}, Service: &goupnp.Service{},
	}
	err := f(ctx, client)
	switch {
	case err == nil, faultCode(err) != 0:
		return err
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}

// callWAN makes one request of a service that maps ports.
func (c controlPoint) callWAN(ctx context.Context, s service, src netip.Addr,
	f func(context.Context, wanConnection) error) error {
	return c.call(ctx, s, src, func(ctx context.Context, sc goupnp.ServiceClient) error {
		switch s.urn {
		case internetgateway2.URN_WANIPConnection_2:
			return f(ctx, &internetgateway2.WANIPConnection2{ServiceClient: sc})
		case internetgateway2.URN_WANIPConnection_1:
			return f(ctx, &internetgateway2.WANIPConnection1{ServiceClient: sc})
		}
		return f(ctx, &internetgateway2.WANPPPConnection1{ServiceClient: sc})
	})
}

// callFirewall makes one request of a service that opens the IPv6 firewall.
func (c controlPoint) callFirewall(ctx context.Context, s service, src netip.Addr,
	f func(context.Context, *internetgateway2.WANIPv6FirewallControl1) error) error {
	return c.call(ctx, s, src, func(ctx context.Context, sc goupnp.ServiceClient) error {
		return f(ctx, &internetgateway2.WANIPv6FirewallControl1{ServiceClient: sc})
	})
}

// A portMapping is what a gateway has for an external port.
type portMapping struct {
	client      netip.Addr // the internal client; zero if it names no address
	port        uint16     // the internal port
	description string
	left        time.Duration // of its lease; 0: for ever
}

// getPortMapping finds what a gateway has for the external port of w; nil if nothing. Some tell that only to the
// internal client, so the VIP is tried, too.
func (c controlPoint) getPortMapping(ctx context.Context, s service, w vip.Mapping) (*portMapping, error) {
	var found portMapping
	get := func(ctx context.Context, wan wanConnection) error {
		port, client, _, description, left, err := wan.GetSpecificPortMappingEntryCtx(ctx, "", w.External, w.Protocol)
		found = portMapping{parseAddr(client), port, description, time.Duration(left) * time.Second}
		return err
	}
	err := c.callWAN(ctx, s, netip.Addr{}, get)
	if faultCode(err) == codeNotAuthorized {
		err = c.callWAN(ctx, s, w.Addr, get)
	}
	switch faultCode(err) {
	case codeNoMapping, codeNoSuchIndex, codeInvalidArgs: // the last is DD-WRT's
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &found, nil
}

// addPortMapping asks for the port mapping w for the time of a lease; 0: for ever.
func (c controlPoint) addPortMapping(ctx context.Context, s service, w vip.Mapping, lease time.Duration) error {
	return c.callWAN(ctx, s, w.Addr, func(ctx context.Context, wan wanConnection) error {
		return wan.AddPortMappingCtx(ctx, "", w.External, w.Protocol, w.Port, w.Addr.String(), true,
			mappingDescription(w), seconds(lease))
	})
}

// deletePortMapping deletes what a gateway has for the external port of w, from the address src. One that the gateway
// does not have is deleted.
func (c controlPoint) deletePortMapping(ctx context.Context, s service, src netip.Addr, w vip.Mapping) error {
	err := c.callWAN(ctx, s, src, func(ctx context.Context, wan wanConnection) error {
		return wan.DeletePortMappingCtx(ctx, "", w.External, w.Protocol)
	})
	if faultCode(err) == codeNoMapping {
		return nil
	}
	return err
}

// externalAddr asks for the gateway's external IP address. It is not valid if there is
// none at present.
func (c controlPoint) externalAddr(ctx context.Context, s service) (netip.Addr, error) {
	var a netip.Addr
	err := c.callWAN(ctx, s, netip.Addr{}, func(ctx context.Context, wan wanConnection) error {
		text, err := wan.GetExternalIPAddressCtx(ctx)
		a = parseAddr(text)
		return err
	})
	if faultCode(err) == 501 { // miniupnpd's way to say that it has none
		return netip.Addr{}, nil
	}
	if a.IsUnspecified() {
		a = netip.Addr{}
	}
	return a, err
}

// chooseService finds the service for a family: of several that map ports the first that
// is connected, in the order of wanConnectionURNs, else the first. If there is none it
// returns an error.
func (c controlPoint) chooseService(ctx context.Context, d description, six bool) (service, error) {
	fit := slices.DeleteFunc(slices.Clone(d.services), func(s service) bool { return six != (s.urn == urnFirewall) })
	switch {
	case len(fit) == 0 && six:
		return service{}, errors.New("it has no control of its IPv6 firewall (WANIPv6FirewallControl), so IPv6 ports " +
			"must be opened on the router by hand")
	case len(fit) == 0:
		return service{}, errors.New("it maps no ports (neither WANIPConnection nor WANPPPConnection)")
	}
	slices.SortStableFunc(fit, func(a, b service) int {
		return slices.Index(wanConnectionURNs, a.urn) - slices.Index(wanConnectionURNs, b.urn)
	})
	if len(fit) == 1 || six {
		return fit[0], nil
	}
	for _, s := range fit {
		status := ""
		// one that does not answer is not connected
		_ = c.callWAN(ctx, s, netip.Addr{}, func(ctx context.Context, wan wanConnection) (err error) {
			status, _, _, err = wan.GetStatusInfoCtx(ctx)
			return err
		})
		if status == "Connected" {
			return s, nil
		}
	}
	return fit[0], nil
}
