package plan

import (
	"cmp"
	"fmt"
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

// Allows reports whether an external port may be opened.
func (f *Forwarding) Allows(port uint16) bool {
	return f.Ports == nil || slices.ContainsFunc(f.Ports, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
}

// closing is how long a VIP whose end has come stays for its mappings' sake.
const closing = 2 * time.Second

// forward wants the ports of s's VIPs open on the gateways of their links. Where a
// VIP is not here they are another node's to keep; without that word they would
// be removed.
func (m *maker) forward(s *service, here func(vip.Address) bool) {
	if s.Forward == nil || m.Forwarding == nil || m.Forwarding.Namespaces != nil && !slices.Contains(m.Forwarding.Namespaces, s.Key.Namespace) {
		return
	}
	for _, a := range s.addrs {
		for _, p := range s.Ports {
			x := vip.Mapping{
				Service: s.Key, UID: s.UID, Claim: s.unit.lease, Addr: a.Addr, Link: m.wayOut(a), Protocol: p.Protocol, Port: p.Port,
				External: p.Port, Any: s.Forward.Any, Lease: s.Forward.Lease, Here: here(a),
			}
			if to := s.Forward.External[p.Port]; to != 0 && a.Addr.Is4() { // a hole in an IPv6 firewall changes no port
				x.External = to
			}
			if m.Forwarding.Allows(x.External) || x.Any && a.Addr.Is4() {
				m.plan.Mappings = append(m.plan.Mappings, x)
			}
		}
	}
}

// wayOut is the link on which the gateways of a VIP are: its own, or, if this node
// has no address there to ask from (a macvlan, lo), the one whose subnet has the
// VIP, else the default.
func (m *maker) wayOut(a vip.Address) string {
	self := m.members[m.Self]
	if self == nil {
		return a.Link
	}
	way := self.Info.DefaultInterface
	for _, l := range self.Info.Links {
		for _, p := range l.Prefixes {
			switch {
			case l.Name == a.Link && p.Addr().Is4() == a.Addr.Is4() && !p.Addr().IsLoopback():
				return a.Link
			case p.Contains(a.Addr):
				way = l.Name
			}
		}
	}
	return cmp.Or(way, a.Link)
}

// nowhere is the here of a VIP that is not on this node.
func nowhere(vip.Address) bool { return false }

// tellForward tells what became of the ports that s has open, or should have.
func (m *maker) tellForward(s *service) {
	if s.Forward == nil {
		return
	}
	var open []string
	wrong := m.forbidden(s)
	pending := false
	for _, x := range m.mapped[s.Key] {
		if !x.RemovalSince.IsZero() {
			continue
		}
		to := netip.AddrPortFrom(x.Addr, x.Port)
		if x.Problem != "" {
			who := "gateway " + x.Gateway + ": "
			if x.Gateway == "" {
				who = ""
			}
			wrong = append(wrong, fmt.Sprintf("%s of %s: %s%s", portName(x.Port, x.Protocol), x.Addr, who, x.Problem))
		}
		switch {
		case x.Confirmed && x.External.Addr().IsValid():
			text := fmt.Sprintf("%s %s -> %s by gateway %s", x.Protocol, x.External, to, x.Gateway)
			if x.External == to {
				text = fmt.Sprintf("%s %s in the firewall of gateway %s", x.Protocol, to, x.Gateway)
			}
			open = append(open, text)
			if !public(x.External.Addr()) && x.Addr.Is4() {
				wrong = append(wrong, fmt.Sprintf("gateway %s is itself behind another: its external address, %s, is not a public one; forward the ports to it on the other", x.Gateway, x.External.Addr()))
			}
		case x.Problem == "":
			pending = true
		}
	}
	slices.Sort(wrong)
	for _, text := range slices.Compact(wrong) {
		m.say(s, vip.PortNotMapped, text, 0)
	}
	if len(open) > 0 && !pending {
		m.say(s, vip.PortMapped, fmt.Sprintf("open: %s; asked for %s at a time", strings.Join(open, ", "), leaseName(s.Forward.Lease)), 0)
	}
}

func portName(port uint16, protocol string) string { return fmt.Sprintf("port %d/%s", port, protocol) }

func leaseName(d time.Duration) string {
	if d == 0 {
		return "ever"
	}
	return d.String()
}

// forbidden says which ports the operator does not let s have opened.
func (m *maker) forbidden(s *service) (wrong []string) {
	switch {
	case m.Forwarding == nil:
		return []string{"this Herald asks no gateway for anything: enable_upnp is false"}
	case m.Forwarding.Namespaces != nil && !slices.Contains(m.Forwarding.Namespaces, s.Key.Namespace):
		return []string{fmt.Sprintf("the namespace %s is none of upnp_namespaces (%s)", s.Key.Namespace, strings.Join(m.Forwarding.Namespaces, ","))}
	}
	for _, p := range s.Ports {
		external := cmp.Or(s.Forward.External[p.Port], p.Port)
		if !s.Forward.Any && !m.Forwarding.Allows(external) {
			wrong = append(wrong, fmt.Sprintf("the external port %d is none of upnp_ports", external))
		}
	}
	return wrong
}

// external is what the status of s says of gateways: their addresses, as kube-vip
// writes them, behind the VIPs. The mode keeps kube-proxy from them: otherwise a
// gateway that names somebody else's address would draw the cluster's traffic to it.
func (m *maker) external(s *service) (list []vip.Ingress) {
	// An address that only the status names would be taken for one to announce.
	if m.Forwarding == nil || !m.Forwarding.Status || s.Forward == nil || s.Source == fromStatus {
		return nil
	}
	for _, x := range m.mapped[s.Key] {
		a := x.External.Addr()
		if !x.Confirmed || !x.RemovalSince.IsZero() || !x.Addr.Is4() || !public(a) || m.taken(a) {
			continue
		}
		i := slices.IndexFunc(list, func(y vip.Ingress) bool { return y.Addr == a })
		if i < 0 {
			i = len(list)
			list = append(list, vip.Ingress{Addr: a, IPMode: vip.ModeProxy})
		}
		if p := (vip.Port{Protocol: x.Protocol, Port: x.External.Port()}); !slices.Contains(list[i].Ports, p) {
			list[i].Ports = append(list[i].Ports, p)
		}
	}
	slices.SortFunc(list, func(a, b vip.Ingress) int { return a.Addr.Compare(b.Addr) })
	for i := range list {
		slices.SortFunc(list[i].Ports, func(a, b vip.Port) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
		})
	}
	return list
}

// taken reports whether a is one of the cluster's own addresses.
func (m *maker) taken(a netip.Addr) bool {
	return m.reserved.of(a, false) != ""
}

// shared is the range that providers use between themselves and their customers (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

// public reports whether a may be an address on the Internet.
func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !shared.Contains(a)
}

// closePorts keeps a VIP that is wanted no more for as long as its mappings are
// being removed, and two seconds at most: many gateways let only the address
// that ports lead to close them.
func (m *maker) closePorts() {
	if len(m.World.MappingStates) == 0 || !m.Tenure.Holds(m.Now) {
		return
	}
	kept := make(map[vip.Mapping]bool, len(m.plan.Mappings))
	for _, x := range m.plan.Mappings {
		x.Here = true
		kept[x] = true
	}
	for _, x := range m.World.MappingStates {
		if !x.Confirmed || m.wanted[x.Addr] || kept[x.Mapping] || m.serves(x.Addr) {
			continue
		}
		until := m.Now.Add(closing)
		if !x.RemovalSince.IsZero() {
			until = x.RemovalSince.Add(closing)
		}
		i := slices.IndexFunc(m.Bound, func(b vip.Address) bool { return b.Addr == x.Addr })
		if i < 0 || !m.Now.Before(until) {
			continue
		}
		a := m.Bound[i]
		a.Lease, a.Until, a.New = x.Claim, until, false
		m.wanted[a.Addr] = true
		m.plan.Addresses = append(m.plan.Addresses, a)
		m.again(until.Sub(m.Now))
	}
}

// serves reports whether a Service has a, here or on another node.
func (m *maker) serves(a netip.Addr) bool {
	return slices.ContainsFunc(m.units, func(u *unit) bool {
		return u.claim.Holder != "" && u.claim.Holder != m.Self && slices.ContainsFunc(u.services, func(s *service) bool {
			return slices.ContainsFunc(s.addrs, func(b vip.Address) bool { return a == b.Addr })
		})
	})
}
