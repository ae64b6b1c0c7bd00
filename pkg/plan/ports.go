package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxOpenPorts is how many ports, per address, a namespace has open on a node: a change writes all, at 5 µs each.
const maxOpenPorts = 8192

// limitPorts adds the open ports of addresses (enable_service_security), none of unwanted ones.
func (m *actions) limitPorts() {
	if !m.LimitPorts {
		return
	}
	sharing := make(map[netip.Addr][]*service)
	for _, s := range m.accepted {
		for _, a := range s.addrs {
			sharing[a.Addr] = append(sharing[a.Addr], s)
		}
	}
	limited := make(map[netip.Addr]bool)
	for _, a := range m.out.Addresses {
		limited[a.Addr] = len(sharing[a.Addr]) == 0 || slices.ContainsFunc(sharing[a.Addr],
			func(s *service) bool { return !s.AllPorts && !s.localDelivery })
	}
	opened := m.openedPorts(limited)
	for _, a := range m.out.Addresses {
		if !limited[a.Addr] {
			continue
		}
		before := len(m.out.OpenPorts)
		for _, s := range sharing[a.Addr] {
			for _, port := range s.Ports[:opened[s]] {
				m.out.OpenPorts = append(m.out.OpenPorts, vip.OpenPort{Addr: a.Addr, Protocol: port.Protocol,
					Port: port.Port})
			}
		}
		if len(m.out.OpenPorts) == before {
			m.out.OpenPorts = append(m.out.OpenPorts, vip.OpenPort{Addr: a.Addr})
		}
	}
	for _, b := range m.Bound {
		if !m.wanted[b.Addr] && !(m.ControlPlane != nil && slices.Contains(m.ControlPlane.Addresses, b.Addr)) {
			m.out.OpenPorts = append(m.out.OpenPorts, vip.OpenPort{Addr: b.Addr})
		}
	}
}

// openedPorts returns how many ports each Service has open on each address.
func (m *actions) openedPorts(limited map[netip.Addr]bool) map[*service]int {
	opened, left := make(map[*service]int, len(m.accepted)), make(map[string]int)
	for _, s := range m.accepted {
		addrs := 0
		for _, a := range s.addrs {
			if limited[a.Addr] {
				addrs++
			}
		}
		if addrs == 0 {
			continue
		}
		ns := s.Key.Namespace
		if _, known := left[ns]; !known {
			left[ns] = maxOpenPorts
		}
		opened[s] = min(len(s.Ports), left[ns]/addrs)
		left[ns] -= opened[s] * addrs
		if closed := len(s.Ports) - opened[s]; closed > 0 {
			m.addEvent(s, vip.InvalidField,
				fmt.Sprintf("spec.ports: the last %d of %d ports are closed. Node %s opens %d ports of VIPs for a namespace "+
					"(enable_service_security), each address counted, those of older Services first; write fewer ports or addresses, "+
					"or ask the operator (kube-vip.io/ignore-service-security)", closed, len(s.Ports), m.Self, maxOpenPorts), 0)
		}
	}
	return opened
}
