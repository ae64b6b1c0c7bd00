package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Forwarding is what gateways may be asked for (UPnP), by the options.
type Forwarding struct {
	Namespaces []string    // whose Services may ask; nil is all
	Ports      [][2]uint16 // external ports that may be opened, first and last; nil is all
	Status     bool        // external addresses are written to statuses
}

func (f *Forwarding) allowsNamespace(name string) bool {
	return f.Namespaces == nil || slices.Contains(f.Namespaces, name)
}

func (f *Forwarding) allowsPort(port uint16) bool {
	return f.Ports == nil || slices.ContainsFunc(f.Ports, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
}

// closeWithin is how long an unwanted VIP may stay for its mappings' sake.
const closeWithin = 2 * time.Second

// maxMappings is how many Mappings a namespace has: gateways are slow, and hold some hundred for all.
const maxMappings = 256

// mappings plans which ports gateways open (UPnP), and reports which are.
type mappings struct {
	*draft
	states  map[vip.Key][]*vip.MappingState // by Service
	counted map[string]int                  // Mappings in the Plan, by namespace
	beyond  map[*service]bool               // those that have fewer than they ask for, because of maxMappings
}

// newMappings groups the World's MappingStates by Service.
func newMappings(p *draft) *mappings {
	m := &mappings{p, make(map[vip.Key][]*vip.MappingState), make(map[string]int), make(map[*service]bool)}
	for i := range p.MappingStates {
		x := &p.MappingStates[i]
		m.states[x.Service] = append(m.states[x.Service], x)
	}
	return m
}

// addMappings adds Mappings of s, made here or only kept.
func (m *mappings) addMappings(s *service, here bool) {
	if s.Forward == nil || m.Forwarding == nil || !m.Forwarding.allowsNamespace(s.Key.Namespace) {
		return
	}
	for _, a := range s.addrs {
		for _, p := range s.Ports {
			x := m.mappingOf(s, a.Address, p)
			x.Claim, x.Here = s.unit.lease, here && m.isBound(a.Address)
			switch {
			case !m.Forwarding.allowsPort(x.External):
			case m.counted[s.Key.Namespace] == maxMappings:
				m.beyond[s] = true
				return
			default:
				m.counted[s.Key.Namespace]++
				m.out.Mappings = append(m.out.Mappings, x)
			}
		}
	}
}

func (m *mappings) mappingOf(s *service, a vip.Address, port vip.Port) vip.Mapping {
	x := vip.Mapping{
		Service: s.Key, UID: s.UID, Addr: a.Addr, Link: m.gatewayLink(a),
		Protocol: port.Protocol, Port: port.Port, External: port.Port, Lease: s.Forward.Lease,
	}
	if a.Addr.Is4() { // a pinhole in an IPv6 firewall changes no port
		x.External = cmp.Or(s.Forward.External[port.Port], port.Port)
	}
	return x
}

// closePorts has gateways close ports, and reports whether to wait.
func (m *mappings) closePorts(s *service) (left bool) {
	asked := m.Forwarding == nil || s.Forward == nil
	for _, x := range m.states[s.Key] {
		asked = asked || x.Gone
		switch {
		case x.Gateway == "":
			left = left || x.Problem == "" // none was found yet
		case x.Requested:
			left = left || x.RemovalSince.IsZero() || m.Now.Sub(x.RemovalSince) < releaseWithin
		}
	}
	if m.Forwarding == nil || s.Forward == nil {
		return left
	}
	for _, a := range s.StatusVIPs() {
		left = left || !asked
		for _, port := range s.Ports[:min(len(s.Ports), maxMappings)] { // it has no others
			x := m.mappingOf(s, vip.Address{Addr: a}, port)
			x.Here, x.Gone = true, true
			m.out.Mappings = append(m.out.Mappings, x)
		}
	}
	return left
}

// gatewayLink returns the link whose gateways are asked for VIP a.
func (m *mappings) gatewayLink(a vip.Address) string {
	if m.self == nil {
		return a.Link
	}
	canAsk := func(x netip.Prefix) bool { return x.Addr().Is4() == a.Addr.Is4() && !x.Addr().IsLoopback() }
	if l := linkNamed(&m.self.Info, a.Link); l != nil && slices.ContainsFunc(l.Prefixes, canAsk) {
		return a.Link
	}
	link, _ := linkFor(&m.self.Info, "auto", a.Addr)
	return cmp.Or(link, a.Link)
}

// addEvents adds Events about problems and open ports of s, announced here.
func (m *mappings) addEvents(s *service) {
	if s.Forward == nil {
		return
	}
	var open []string
	problems := m.whyForbidden(s)
	if m.beyond[s] {
		problems = append(problems, fmt.Sprintf("the Services of the namespace %s ask for more than %d ports, each "+
			"address counted, those of older Services first: the rest of this one's are not asked for; write fewer, "+
			"or fewer addresses", s.Key.Namespace, maxMappings))
	}
	pending := false
	for _, x := range m.states[s.Key] {
		if !x.RemovalSince.IsZero() {
			continue
		}
		to := netip.AddrPortFrom(x.Addr, x.Port)
		if x.Problem != "" {
			gateway := ""
			if x.Gateway != "" {
				gateway = "gateway " + x.Gateway + ": "
			}
			problems = append(problems, fmt.Sprintf("port %d/%s of %s: %s%s", x.Port, x.Protocol, x.Addr, gateway, x.Problem))
		}
		switch {
		case x.Confirmed && x.External.Addr().IsValid():
			text := fmt.Sprintf("%s %s -> %s by gateway %s", x.Protocol, x.External, to, x.Gateway)
			if x.External == to {
				text = fmt.Sprintf("%s %s in the firewall of gateway %s", x.Protocol, to, x.Gateway)
			}
			open = append(open, text)
			if !isPublic(x.External.Addr()) && x.Addr.Is4() {
				problems = append(problems, fmt.Sprintf("gateway %s is itself behind another: its external address, "+
					"%s, is not a public one; forward the ports to it on the other", x.Gateway, x.External.Addr()))
			}
		case x.Problem == "":
			pending = true
		}
	}
	slices.Sort(problems)
	for _, text := range slices.Compact(problems) {
		m.addEvent(s, vip.PortNotMapped, text, 0)
	}
	if len(open) > 0 && !pending {
		lease := "ever"
		if s.Forward.Lease != 0 {
			lease = s.Forward.Lease.String()
		}
		m.addEvent(s, vip.PortMapped, fmt.Sprintf("open: %s; asked for %s at a time", strings.Join(open, ", "), lease), 0)
	}
}

// whyForbidden returns why s may have no ports opened, or nil.
func (m *mappings) whyForbidden(s *service) (reasons []string) {
	switch {
	case m.Forwarding == nil:
		return []string{"this Herald asks no gateway for anything: enable_upnp is false"}
	case !m.Forwarding.allowsNamespace(s.Key.Namespace):
		return []string{fmt.Sprintf("the namespace %s is none of upnp_namespaces (%s)", s.Key.Namespace,
			strings.Join(m.Forwarding.Namespaces, ","))}
	}
	const limit = 5
	var forbidden []string
	n := 0
	for _, p := range s.Ports {
		external := cmp.Or(s.Forward.External[p.Port], p.Port)
		if m.Forwarding.allowsPort(external) {
			continue
		}
		if n++; n <= limit {
			forbidden = append(forbidden, fmt.Sprint(external))
		}
	}
	switch list := strings.Join(forbidden, ", "); {
	case n == 0:
		return nil
	case n == 1:
		return []string{"the external port " + list + " is none of upnp_ports"}
	case n > limit:
		return []string{fmt.Sprintf("the external ports %s and %d more are none of upnp_ports", list, n-limit)}
	default:
		return []string{"the external ports " + list + " are none of upnp_ports"}
	}
}

// externalIngress returns public addresses where gateways confirmed ports of s. What the status has of them stays until
// they have answered: a new owner asks again.
func (m *mappings) externalIngress(s *service) (list []vip.Ingress) {
	// If only the status names addresses, these would be announced.
	if m.Forwarding == nil || !m.Forwarding.Status || s.Forward == nil || s.Source == vip.SourceStatus {
		return nil
	}
	usable := func(a netip.Addr) bool { return isPublic(a) && m.whatIs(s, a) == "" }
	ports := make(map[netip.Addr][]vip.Port)
	if m.unanswered(s) && s.statusOurs {
		for _, i := range s.Ingress {
			if i.IPMode == vip.ModeProxy && usable(i.Addr) && !s.Record.Has(i.Addr) && !s.hasAddress(i.Addr) {
				ports[i.Addr] = slices.Clone(i.Ports)
			}
		}
	}
	for _, x := range m.states[s.Key] {
		a := x.External.Addr()
		if !x.Confirmed || !x.RemovalSince.IsZero() || !x.Addr.Is4() || !usable(a) {
			continue
		}
		ports[a] = append(ports[a], vip.Port{Protocol: x.Protocol, Port: x.External.Port()})
	}
	for _, a := range slices.SortedFunc(maps.Keys(ports), netip.Addr.Compare) {
		slices.SortFunc(ports[a], func(a, b vip.Port) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
		})
		// Proxy keeps kube-proxy from what a gateway names
		list = append(list, vip.Ingress{Addr: a, IPMode: vip.ModeProxy, Ports: slices.Compact(ports[a])})
	}
	return list
}

// unanswered reports whether some gateway, or the search for one, has yet to answer about a port of s, planned last.
func (m *mappings) unanswered(s *service) bool {
	answered := make(map[vip.Mapping]bool)
	for _, x := range m.states[s.Key] {
		before, known := answered[x.Mapping]
		answered[x.Mapping] = (x.Confirmed || x.Problem != "") && (before || !known)
	}
	for _, x := range slices.Backward(m.out.Mappings) {
		if x.Service != s.Key {
			break
		}
		if x.Here && x.Addr.Is4() && !answered[x] {
			return true
		}
	}
	return false
}

// sharedRange is between providers and their customers (RFC 6598).
var sharedRange = netip.MustParsePrefix("100.64.0.0/10")

// isPublic reports whether a may be an address on the Internet.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedRange.Contains(a)
}

// keepUntilClosed keeps addresses until their ports are closed: gateways ask for that.
func (m *mappings) keepUntilClosed(units []*unit) {
	if !m.Tenure.Holds(m.Now) {
		return
	}
	wanted := make(map[vip.Mapping]bool, len(m.out.Mappings))
	for _, x := range m.out.Mappings {
		x.Here = true
		wanted[x] = true
	}
	elsewhere := func(a netip.Addr) bool {
		return slices.ContainsFunc(units, func(u *unit) bool {
			return u.claim.Holder != "" && u.claim.Holder != m.Self && slices.ContainsFunc(u.services,
				func(s *service) bool { return s.hasAddress(a) })
		})
	}
	for _, x := range m.MappingStates {
		if !x.Requested || m.wanted[x.Addr] || wanted[x.Mapping] || elsewhere(x.Addr) {
			continue
		}
		until := cmp.Or(x.RemovalSince, m.Now).Add(closeWithin)
		i := slices.IndexFunc(m.Bound, func(b vip.Address) bool { return b.Addr == x.Addr })
		if i < 0 || !m.Now.Before(until) {
			continue
		}
		a := m.Bound[i]
		a.Lease, a.Until, a.New = x.Claim, until, false
		m.wanted[a.Addr] = true
		m.out.Addresses = append(m.out.Addresses, a)
		m.replanAfter(until.Sub(m.Now))
	}
}
