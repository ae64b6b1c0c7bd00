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
	"strings"
	"time"

	"github.com/huin/goupnp/dcps/internetgateway2"

	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of a request.
const (
	maxReply       = 64 << 10 // bytes
	requestTimeout = 4 * time.Second
	// vipConnectTimeout is for connections from the VIP: answers are lost while the gateway has another MAC for it.
	vipConnectTimeout = 1500 * time.Millisecond
)

var errRedirect = errors.New("the gateway sends the request elsewhere; that is refused")

// A controlPoint sends requests to one gateway: at its address on its link, and nowhere else.
type controlPoint struct {
	link string
	addr netip.Addr // of the gateway
}

// httpClient makes requests from src if this node has it, else its own address, without redirects or kept connections.
func (c controlPoint) httpClient(src netip.Addr) http.Client {
	return http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return c.dial(ctx, src, address) },
		},
	}
}

// dial connects to a port of the gateway; other hosts are refused. If that can't be done from src, the VIP, it is from
// the node's own address (docs/why.md, "UPnP").
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
	if src.IsValid() { // bound to no link: a leased VIP is on a macvlan of c.link, where the answers arrive
		d := net.Dialer{Timeout: vipConnectTimeout, LocalAddr: &net.TCPAddr{IP: src.AsSlice()}}
		if conn, err := d.DialContext(ctx, "tcp", address); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	d := net.Dialer{Control: bindToLink(c.link)}
	return d.DialContext(ctx, "tcp", address)
}

// parseAddr reads a host's address without a zone; it is invalid if text is none.
func parseAddr(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a.Unmap().WithZone("")
}

// urnFirewall is the type of the service that opens the IPv6 firewall.
const urnFirewall = internetgateway2.URN_WANIPv6FirewallControl_1

// wanConnectionURNs are services that map ports, the best first, with the same actions (WANIPConnection:2 section 2.5).
var wanConnectionURNs = []string{internetgateway2.URN_WANIPConnection_2, internetgateway2.URN_WANIPConnection_1,
	internetgateway2.URN_WANPPPConnection_1}

// A portMapping is what a gateway has for an external port.
type portMapping struct {
	client      netip.Addr // the internal client; zero if it names no address
	port        uint16     // the internal port
	description string
	left        time.Duration // of its lease; 0: for ever
}

// getPortMapping finds what has w's external port, or nil. Some tell only the internal client: the VIP is tried, too.
func (c controlPoint) getPortMapping(ctx context.Context, s service, w vip.Mapping) (*portMapping, error) {
	get := func(src netip.Addr) (document, error) {
		return c.invoke(ctx, s, src, "GetSpecificPortMappingEntry", externalPort(w)...)
	}
	d, err := get(netip.Addr{})
	if faultCode(err) == codeNotAuthorized {
		d, err = get(w.Addr)
	}
	switch faultCode(err) {
	case codeNoMapping, codeNoSuchIndex, codeInvalidArgs: // the last is DD-WRT's
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	port, err := d.number("newinternalport", 16)
	left, _ := d.number("newleaseduration", 32) // some leave it out
	return &portMapping{parseAddr(d.text("newinternalclient")), uint16(port), d.text("newportmappingdescription"),
		time.Duration(left) * time.Second}, err
}

func externalPort(w vip.Mapping) []string {
	return []string{"NewRemoteHost", "", "NewExternalPort", fmt.Sprint(w.External), "NewProtocol", w.Protocol}
}

// addPortMapping asks for w with a lease; 0: for ever.
func (c controlPoint) addPortMapping(ctx context.Context, s service, w vip.Mapping, lease time.Duration) error {
	_, err := c.invoke(ctx, s, w.Addr, "AddPortMapping", append(externalPort(w), "NewInternalPort", fmt.Sprint(w.Port),
		"NewInternalClient", w.Addr.String(), "NewEnabled", "1", "NewPortMappingDescription", mappingDescription(w),
		"NewLeaseDuration", seconds(lease))...)
	return err
}

// deletePortMapping deletes what a gateway has for w's external port, from src. A missing one is deleted.
func (c controlPoint) deletePortMapping(ctx context.Context, s service, src netip.Addr, w vip.Mapping) error {
	_, err := c.invoke(ctx, s, src, "DeletePortMapping", externalPort(w)...)
	if faultCode(err) == codeNoMapping {
		return nil
	}
	return err
}

// externalAddr asks for the gateway's external address, invalid if there is none at present.
func (c controlPoint) externalAddr(ctx context.Context, s service) (netip.Addr, error) {
	d, err := c.invoke(ctx, s, netip.Addr{}, "GetExternalIPAddress")
	if faultCode(err) == codeActionFailed { // miniupnpd's way to say that it has none
		return netip.Addr{}, nil
	}
	a := parseAddr(d.text("newexternalipaddress"))
	if a.IsUnspecified() {
		a = netip.Addr{}
	}
	return a, err
}

// chooseService finds a family's service: the first connected of several that map ports, by wanConnectionURNs, else the
// first that answers, else the first; or an error.
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
	var answers []service
	for _, s := range fit {
		d, err := c.invoke(ctx, s, netip.Addr{}, "GetStatusInfo")
		if d.text("newconnectionstatus") == "Connected" {
			return s, nil
		}
		if err == nil {
			answers = append(answers, s)
		}
	}
	return append(answers, fit[0])[0], nil
}

// Bounds of a description, in bytes and in number.
const (
	maxDescription = 256 << 10
	maxServices    = 16
)

// A description is a gateway's device description document.
type description struct {
	name     string // what it calls itself, fit to be printed
	services []service
}

// A service is one of a gateway's that Herald can use.
type service struct {
	urn     string // its service type
	control string // the URL that takes its requests
}

func (c controlPoint) fetchDescription(ctx context.Context, location *url.URL) (description, error) {
	status, text, err := c.get(ctx, location.String(), maxDescription)
	switch {
	case err != nil:
		return description{}, fmt.Errorf("its description can't be had: %w", err)
	case status != http.StatusOK:
		return description{}, fmt.Errorf("its description can't be had: status %d", status)
	}
	return parseDescription(text, location, c.addr)
}

// parseDescription reads a description from location; without services that open ports, controlled at addr, it is an
// error. A URL that may mean several places is a service at each: at URLBase, of UPnP 1.0, often with a wrong port, or
// at the description's host; and there at the root, as most mean it, or beside the description, as the standard does.
func parseDescription(text []byte, location *url.URL, addr netip.Addr) (description, error) {
	document := readDocument(text)
	if !document.has("device") {
		return description{}, errors.New("its description is not to be understood")
	}
	d := description{name: printable(document.text("friendlyname"), 40)}
	bases := []*url.URL{location}
	if u, err := url.Parse(document.text("urlbase")); err == nil && parseAddr(u.Hostname()) == addr {
		bases = []*url.URL{u, location}
	}
	var elsewhere error
	add := func(urn, control string) {
		paths := []string{control}
		if !strings.Contains(control, "://") && !strings.HasPrefix(control, "/") {
			paths = []string{"/" + control, control}
		}
		for _, base := range bases {
			for _, p := range paths {
				u, err := base.Parse(p)
				switch {
				case err != nil || len(d.services) == maxServices:
				case parseAddr(u.Hostname()) != addr || u.Scheme != "http":
					elsewhere = fmt.Errorf("its description sends requests to another host, %s; that is refused", quote(u.Host))
				case !slices.Contains(d.services, service{urn, u.String()}):
					d.services = append(d.services, service{urn, u.String()})
				}
			}
		}
	}
	var urn, control string
	for _, x := range document {
		switch x.name {
		case "service":
			urn, control = "", ""
		case "servicetype":
			urn = x.text
		case "controlurl":
			control = x.text
		}
		if control != "" && (urn == urnFirewall || slices.Contains(wanConnectionURNs, urn)) {
			add(urn, control)
			urn = ""
		}
	}
	if len(d.services) == 0 {
		return description{}, errors.Join(errors.New("its description names no service that opens ports"), elsewhere)
	}
	return d, nil
}

// printable is up to max printable ASCII characters: text from the network must not control users' terminals.
func printable(text string, max int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text[:min(len(text), 4*max)])
	return strings.TrimSpace(clean[:min(len(clean), max)])
}

func quote(text string) string { return `"` + strings.ReplaceAll(printable(text, 60), `"`, "'") + `"` }
