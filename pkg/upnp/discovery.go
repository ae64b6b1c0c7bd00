package upnp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxGateways is how many gateways a segment may have: anybody on a LAN may claim to be one.
const maxGateways = 8

// A searched is a segment with its searches' results.
type searched struct {
	next     time.Time // when the next search begins
	gateways map[netip.Addr]*gateway
	problem  string // why there is no gateway, or ""
}

// found is the outcome of one search.
type found struct {
	segment   segment
	responses []response // one of each gateway
	refused   string     // why responses were refused, or ""
	err       error      // why no address could be searched from
}

// search begins a search on each segment that is due, and returns when the next is.
func (m *Mapper) search(ctx context.Context, searches *sync.WaitGroup) (next time.Time) {
	next = time.Now().Add(idle)
	for s := range m.want.Get().segments {
		m.mu.Lock()
		if m.segments[s] == nil {
			m.segments[s] = &searched{gateways: make(map[netip.Addr]*gateway)}
		}
		m.mu.Unlock()
		x := m.segments[s]
		if now := time.Now(); !now.Before(x.next) {
			wait := m.timing.period
			if len(x.gateways) == 0 {
				wait /= 3
			}
			x.next = now.Add(m.timing.responses + wait)
			searches.Go(func() {
				select {
				case m.found <- m.searchSegment(ctx, s):
				case <-ctx.Done():
				}
			})
		}
		next = vip.Earlier(next, x.next)
	}
	return next
}

// searchSegment searches once, from all source addresses at the same time.
func (m *Mapper) searchSegment(ctx context.Context, s segment) found {
	all := found{segment: s}
	var own []netip.Prefix
	for _, l := range m.o.Links() {
		if l.Name == s.link {
			own = l.Prefixes
		}
	}
	list := sourceAddrs(s, own)
	if len(list) == 0 {
		all.err = errNoAddress
		return all
	}
	each := make([]found, len(list))
	var group sync.WaitGroup
	for i, from := range list {
		group.Go(func() { each[i] = m.searchFrom(ctx, s, from, own) })
	}
	group.Wait()
	var errs []error
	for _, f := range each {
		all.responses = append(all.responses, f.responses...)
		all.refused = firstText(all.refused, f.refused)
		errs = append(errs, f.err)
	}
	if !slices.Contains(errs, nil) {
		all.err = errors.Join(errs...)
	}
	return all
}

func (m *Mapper) record(f found) {
	m.mu.Lock()
	x := m.segments[f.segment]
	problem := x.problem
	m.takeOver(x, f)
	x.problem = m.whyNone(x, f)
	m.mu.Unlock()
	if x.problem != "" && f.segment.family == vip.IPv4 { // most routers do nothing of the kind for IPv6
		m.metrics.failures.WithLabelValues(failNoGateway).Inc()
	}
	if x.problem != problem {
		m.o.Poke()
	}
}

func (m *Mapper) mayAsk(gateway netip.Addr) bool {
	return len(m.o.Gateways) == 0 || slices.Contains(m.o.Gateways, gateway)
}

// takeOver adds up to maxGateways that responded, and forgets unusable ones silent for three times timing.period.
func (m *Mapper) takeOver(x *searched, f found) {
	for _, r := range f.responses {
		if g := x.gateways[r.addr]; g != nil {
			g.seen, g.latest = time.Now(), g.at
		}
	}
	for _, r := range f.responses {
		switch g := x.gateways[r.addr]; {
		case g != nil && *r.location == *g.at.location: // another one, if there is, is tried if that fails
		case g != nil:
			g.latest = r
		case m.mayAsk(r.addr) && len(x.gateways) < maxGateways:
			x.gateways[r.addr] = newGateway(m, f.segment, r)
			m.metrics.gateways.Inc()
			m.o.Log.Info("found a gateway", "link", f.segment.link, "address", r.addr)
		}
	}
	for addr, g := range x.gateways {
		if g.problem != "" && time.Since(g.seen) > 3*m.timing.period {
			clear(g.entries)
			g.publish()
			delete(x.gateways, addr)
			m.metrics.gateways.Dec()
			m.o.Log.Info("a gateway is gone", "link", f.segment.link, "address", addr)
		}
	}
}

// whyNone returns why there is no gateway, or "" if there is one.
func (m *Mapper) whyNone(x *searched, f found) string {
	switch {
	case len(x.gateways) > 0:
		return ""
	case f.err != nil:
		return f.err.Error()
	case f.refused != "":
		return f.refused
	case len(m.o.Gateways) > 0:
		return "none of the gateways that upnp_gateways names answers on " + f.segment.String()
	}
	return "no UPnP gateway answers on " + f.segment.String() + "; turn UPnP (IGD) on on the router"
}

// Bounds of a search.
const (
	maxDatagram  = 4096 // bytes; longer ones are cut off, and then not understood
	maxResponses = 64   // looked at in one search
	maxLocation  = 1024 // bytes of a URL
	maxSubnets   = 4    // of a link that are searched
	ssdpPort     = 1900
	// maxWait is how long, in seconds, gateways may delay responses at random (MX).
	maxWait = 1
)

// searchTargets are the device types (ST). Version 2 must respond to 1 as well; some don't.
var searchTargets = []string{
	"urn:schemas-upnp-org:device:InternetGatewayDevice:1",
	"urn:schemas-upnp-org:device:InternetGatewayDevice:2",
}

// A segment is where gateways are searched for: a link, in one family.
type segment struct {
	link   string
	family vip.Family
}

func (s segment) String() string { return s.link + " (" + s.family.String() + ")" }

// group is where M-SEARCH is sent on the segment (UPnP Device Architecture 2.0, section 1.3 and annex A).
func (s segment) group() (network string, to netip.AddrPort) {
	if s.family == vip.IPv6 {
		return "udp6", netip.AddrPortFrom(netip.MustParseAddr("ff02::c").WithZone(s.link), ssdpPort)
	}
	return "udp4", netip.AddrPortFrom(netip.MustParseAddr("239.255.255.250"), ssdpPort)
}

func segmentOf(m vip.Mapping) segment { return segment{m.Link, vip.FamilyOf(m.Addr)} }

type response struct {
	addr     netip.Addr // of the gateway, without a zone
	target   string     // which of searchTargets it responds to
	location *url.URL   // of its description
}

var errNoAddress = errors.New("the link has no address of this family of its own, from which gateways could be asked")

// sourceAddrs are where to ask from: one in each IPv4 subnet, as gateways may know one only; for IPv6 the link-local.
func sourceAddrs(s segment, own []netip.Prefix) (list []netip.Addr) {
	if s.family == vip.IPv6 {
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	var subnets []netip.Prefix
	for _, p := range own {
		if p.Addr().Is4() && !slices.Contains(subnets, p.Masked()) && len(list) < maxSubnets {
			subnets, list = append(subnets, p.Masked()), append(list, p.Addr())
		}
	}
	return list
}

// searchFrom searches once, from an address of the link, whose addresses are own, for timing.responses.
func (m *Mapper) searchFrom(ctx context.Context, s segment, from netip.Addr, own []netip.Prefix) (f found) {
	fail := func(err error) found { return found{err: fmt.Errorf("search for gateways on %s: %w", s, err)} }
	network, to := s.group()
	config := net.ListenConfig{Control: bindToLink(s.link)}
	pc, err := config.ListenPacket(ctx, network, netip.AddrPortFrom(from, 0).String())
	if err != nil {
		return fail(err)
	}
	conn := pc.(*net.UDPConn)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, m.timing.responses)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	for range 2 { // datagrams get lost
		for _, t := range searchTargets {
			if _, err := conn.WriteToUDPAddrPort(searchRequest(t, to), to); err != nil {
				return fail(err)
			}
		}
	}
	f.responses = readResponses(conn, s, own, func(from netip.Addr, r response, why error) {
		if m.mayAsk(from) || m.mayAsk(parseAddr(r.location.Hostname())) {
			text := fmt.Sprintf("the gateway %s answers on %s, but is not asked: %v", from, s, why)
			f.refused = firstText(f.refused, text)
		}
	})
	return f
}

type datagrams interface {
	ReadFromUDPAddrPort(b []byte) (n int, from netip.AddrPort, err error)
}

// readResponses returns gateways' good responses, each location once, until the deadline or maxResponses. It calls
// refused for refused locations. For IPv6, version 1 counts only if the gateway gave no other: what opens a firewall is
// in version 2 (InternetGatewayDevice:2), and some routers are two devices at one address.
func readResponses(conn datagrams, s segment, own []netip.Prefix,
	refused func(netip.Addr, response, error)) []response {
	var good, others []response
	add := func(r response, same func(response) bool) {
		if !slices.ContainsFunc(good, same) {
			good = append(good, r)
		}
	}
	buf := make([]byte, maxDatagram)
	for range maxResponses {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			break
		}
		r, err := parseResponse(buf[:n])
		if err != nil {
			continue
		}
		switch err := checkResponse(&r, s, from.Addr(), own); {
		case err != nil:
			refused(from.Addr().Unmap().WithZone(""), r, err)
		case s.family == vip.IPv6 && r.target == searchTargets[0]:
			others = append(others, r)
		default:
			add(r, func(x response) bool { return *x.location == *r.location })
		}
	}
	for _, r := range others {
		add(r, func(x response) bool { return x.addr == r.addr })
	}
	return good
}

func searchRequest(target string, to netip.AddrPort) []byte {
	host := netip.AddrPortFrom(to.Addr().WithZone(""), to.Port())
	return fmt.Appendf(nil, "M-SEARCH * HTTP/1.1\r\nHOST: %s\r\nMAN: \"ssdp:discover\"\r\nMX: %d\r\nST: %s\r\n\r\n", host,
		maxWait, target)
}

// parseResponse reads the response to an M-SEARCH for one of searchTargets.
func parseResponse(datagram []byte) (response, error) {
	status, rest, _ := bytes.Cut(datagram, []byte("\n"))
	words := strings.Fields(string(status))
	if len(words) < 2 || !strings.HasPrefix(strings.ToUpper(words[0]), "HTTP/") || words[1] != "200" {
		return response{}, fmt.Errorf("no response of status 200: %s", quote(string(status)))
	}
	h := headers(rest)
	target := strings.Trim(h.Get("ST"), `"`)
	if !slices.Contains(searchTargets, target) {
		return response{}, errors.New("not what was searched for")
	}
	location := strings.Trim(h.Get("LOCATION"), `"<>`)
	if location == "" || len(location) > maxLocation {
		return response{}, errors.New("no location of a usable length")
	}
	u, err := url.Parse(location)
	if err != nil {
		return response{}, err
	}
	return response{target: target, location: u}, nil
}

// headers reads a datagram's fields, and passes over other lines: routers leave out the last empty line, end lines with
// LF, put spaces before colons, or repeat fields, of which the first counts.
func headers(text []byte) http.Header {
	h := make(http.Header)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n\x00")
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); ok && name != "" && h.Get(name) == "" {
			h.Set(name, strings.TrimSpace(value))
		}
	}
	return h
}

// checkResponse checks that a response's location is at from, another host of the link, and fills in r.addr.
func checkResponse(r *response, s segment, from netip.Addr, own []netip.Prefix) error {
	from = from.Unmap().WithZone("")
	if r.location.Scheme != "http" || r.location.User != nil {
		return errors.New("its description is not to be had by plain http")
	}
	host := parseAddr(r.location.Hostname())
	if !host.IsValid() {
		return fmt.Errorf("its description is at a name, %s, not at its address", quote(r.location.Hostname()))
	}
	if vip.FamilyOf(host) != s.family {
		return fmt.Errorf("its description is at an address of the other family, %s", host)
	}
	// An IPv6 gateway answers from link-local, and is reached elsewhere.
	if host != from && !(s.family == vip.IPv6 && from.IsLinkLocalUnicast()) {
		return fmt.Errorf("its description is at another host, %s", host)
	}
	for _, h := range []netip.Addr{host, from} {
		if !isNeighbor(h, own) {
			return fmt.Errorf("%s is no other host of the link's networks", h)
		}
	}
	r.addr = host
	return nil
}

// firstText returns the first of two texts by alphabet; "" only if both are.
func firstText(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

// isNeighbor reports whether a can be another host on a link with these prefixes.
func isNeighbor(a netip.Addr, own []netip.Prefix) bool {
	if slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == a }) {
		return false // this node itself
	}
	inSubnet := slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
	return a.Is6() && a.IsLinkLocalUnicast() || a.IsGlobalUnicast() && inSubnet
}

// bindToLink returns a net.Dialer.Control that binds a socket to a link.
func bindToLink(link string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link)
		})
		return errors.Join(err, failed)
	}
}
