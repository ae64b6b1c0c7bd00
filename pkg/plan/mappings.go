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

// A Forwarding is what gateways may be asked for (UPnP), as the options have it.
type Forwarding struct {
	Namespaces []string    // whose Services may ask; nil is all
	Ports      [][2]uint16 // external ports that may be opened, first and last; nil is all
	Status     bool        // external addresses are written to statuses
}

func (f *Forwarding) allowsNamespace(name string) bool {
	return f.Namespaces == nil || slices.Contains(f.Namespaces, name)
}

// AllowsPort reports whether an external port may be opened.
func (f *Forwarding) AllowsPort(port uint16) bool {
	return f.Ports == nil || slices.ContainsFunc(f.Ports, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
}

// closeWithin is how long a VIP that is not wanted any more may stay for its mappings' sake.
const closeWithin = 2 * time.Second

// mappings plans which ports gateways are to have open (UPnP).
type mappings struct {
	*pass
	states map[vip.Key][]*vip.MappingState // by Service
}

func newMappings(p *pass) *mappings {
	m := &mappings{p, make(map[vip.Key][]*vip.MappingState)}
	for i := range p.MappingStates {
		x := &p.MappingStates[i]
		m.states[x.Service] = append(m.states[x.Service], x)
	}
	return m
}

// want adds the mappings of all ports of s to the Plan that options and namespaces allow, on the gateways of the
// links of its addresses. If s is announced here, this node makes and renews those of addresses that are bound;
// if not, they are in the Plan because they would else be removed, which is for the node that made them to do.
func (m *mappings) want(s *service, here bool) {
	if s.Forward == nil || m.Forwarding == nil || !m.Forwarding.allowsNamespace(s.Key.Namespace) {
		return
	}
	for _, a := range s.addrs {
		for _, p := range s.Ports {
			x := vip.Mapping{
				Service: s.Key, UID: s.UID, Claim: s.unit.lease, Addr: a.Addr, Link: m.gatewayLink(a.Address), Protocol: p.Protocol, Port: p.Port,
				External: p.Port, Any: s.Forward.Any, Lease: s.Forward.Lease, Here: here && m.isBound(a.Address),
			}
			if a.Addr.Is4() { // a pinhole in an IPv6 firewall changes no port
				x.External = cmp.Or(s.Forward.External[p.Port], p.Port)
			}
			if m.Forwarding.AllowsPort(x.External) || x.Any && a.Addr.Is4() {
				m.out.Mappings = append(m.out.Mappings, x)
			}
		}
	}
}

// gatewayLink is the link on which the gateways of a VIP are asked: its own; if this node has no address of its
// family there to ask from (a macvlan, lo), the one whose subnet has the VIP, else the one with the default
// route.
func (m *mappings) gatewayLink(a vip.Address) string {
	if m.self == nil {
		return a.Link
	}
	canAsk := func(p netip.Prefix) bool { return p.Addr().Is4() == a.Addr.Is4() && !p.Addr().IsLoopback() }
	if l := linkNamed(&m.self.Info, a.Link); l != nil && slices.ContainsFunc(l.Prefixes, canAsk) {
		return a.Link
	}
	link, _ := linkFor(&m.self.Info, "auto", a.Addr)
	return cmp.Or(link, a.Link)
}

// report sends Events about the mappings of s, which is announced here: one for each reason why a port is not
// open, and, once no gateway's answer is pending, one that lists the ports that are.
func (m *mappings) report(s *service) {
	if s.Forward == nil {
		return
	}
	var open []string
	problems := m.forbidden(s)
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
			if !public(x.External.Addr()) && x.Addr.Is4() {
				problems = append(problems, fmt.Sprintf("gateway %s is itself behind another: its external address, %s, is not a public one; forward the ports to it on the other", x.Gateway, x.External.Addr()))
			}
		case x.Problem == "":
			pending = true
		}
	}
	slices.Sort(problems)
	for _, text := range slices.Compact(problems) {
		m.event(s, vip.PortNotMapped, text, 0)
	}
	if len(open) > 0 && !pending {
		lease := "ever"
		if s.Forward.Lease != 0 {
			lease = s.Forward.Lease.String()
		}
		m.event(s, vip.PortMapped, fmt.Sprintf("open: %s; asked for %s at a time", strings.Join(open, ", "), lease), 0)
	}
}

// forbidden lists which ports the options do not let s have opened.
func (m *mappings) forbidden(s *service) (reasons []string) {
	switch {
	case m.Forwarding == nil:
		return []string{"this Herald asks no gateway for anything: enable_upnp is false"}
	case !m.Forwarding.allowsNamespace(s.Key.Namespace):
		return []string{fmt.Sprintf("the namespace %s is none of upnp_namespaces (%s)", s.Key.Namespace, strings.Join(m.Forwarding.Namespaces, ","))}
	}
	for _, p := range s.Ports {
		external := cmp.Or(s.Forward.External[p.Port], p.Port)
		if !s.Forward.Any && !m.Forwarding.AllowsPort(external) {
			reasons = append(reasons, fmt.Sprintf("the external port %d is none of upnp_ports", external))
		}
	}
	return reasons
}

// externalIngress is what the status of s has behind the VIPs, as with kube-vip: the public IPv4 addresses on
// which gateways have its ports open, provided that the options want them there. The mode Proxy keeps
// kube-proxy from them: otherwise a gateway that names somebody else's address would draw the cluster's traffic
// to it.
func (m *mappings) externalIngress(s *service) (list []vip.Ingress) {
	// If only the status names addresses, these would be taken for ones to announce.
	if m.Forwarding == nil || !m.Forwarding.Status || s.Forward == nil || s.Source == sourceStatus {
		return nil
	}
	ports := make(map[netip.Addr][]vip.Port)
	for _, x := range m.states[s.Key] {
		a := x.External.Addr()
		if !x.Confirmed || !x.RemovalSince.IsZero() || !x.Addr.Is4() || !public(a) || m.reserved.whatIs(a, false) != "" {
			continue
		}
		ports[a] = append(ports[a], vip.Port{Protocol: x.Protocol, Port: x.External.Port()})
	}
	for _, a := range slices.SortedFunc(maps.Keys(ports), netip.Addr.Compare) {
		slices.SortFunc(ports[a], func(a, b vip.Port) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
		})
		list = append(list, vip.Ingress{Addr: a, IPMode: vip.ModeProxy, Ports: slices.Compact(ports[a])})
	}
	return list
}

// sharedRange is the range that providers use between themselves and their customers (RFC 6598).
var sharedRange = netip.MustParsePrefix("100.64.0.0/10")

// public reports whether a may be an address on the Internet.
func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedRange.Contains(a)
}

// keepUntilClosed keeps each VIP that this node has and no Service wants any more while a mapping to it is
// being removed, closeWithin at most: many gateways let only the address that ports lead to close them. It does
// nothing without a valid tenure.
func (m *mappings) keepUntilClosed(units []*unit) {
	if len(m.MappingStates) == 0 || !m.Tenure.Holds(m.Now) {
		return
	}
	wanted := make(map[vip.Mapping]bool, len(m.out.Mappings))
	for _, x := range m.out.Mappings {
		x.Here = true
		wanted[x] = true
	}
	elsewhere := func(a netip.Addr) bool {
		return slices.ContainsFunc(units, func(u *unit) bool {
			return u.claim.Holder != "" && u.claim.Holder != m.Self && slices.ContainsFunc(u.services, func(s *service) bool { return s.has(a) })
		})
	}
	for _, x := range m.MappingStates {
		if !x.Confirmed || m.wanted[x.Addr] || wanted[x.Mapping] || elsewhere(x.Addr) {
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
