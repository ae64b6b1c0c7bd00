package plan

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// balance spreads connections to the control plane's VIP over API servers.
func (m *actions) balance() {
	if m.ControlPlane == nil || m.ControlPlane.BalancedPort == 0 {
		return
	}
	for _, u := range m.units {
		_, handingOver := m.HandingOver[u.lease] // still answered for here
		for _, s := range u.services {
			if !s.localDelivery || u.claim.Foreign || u.claim.Holder != m.Self && !handingOver {
				continue
			}
			for _, a := range s.addrs {
				m.balanceAddress(s, a.Addr)
			}
		}
	}
}

// balanceAddress adds the API servers for one address of s.
func (m *actions) balanceAddress(s *service, a netip.Addr) {
	ready := slices.DeleteFunc(slices.Clone(m.alive), func(n *member) bool { return !n.Info.APIServerReady })
	if well := slices.DeleteFunc(slices.Clone(ready), func(n *member) bool {
		return n.refusal != "" || n.shuttingDown || n.Unproven
	}); len(well) > 0 {
		ready = well
	}
	for _, n := range ready {
		link, _ := linkFor(&n.Info, s.Interface, a)
		own := n.Info.OwnAddresses(link)
		i := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
		if i >= 0 && linkFault(&n.Info, link) == "" && (n == m.self || !n.unheard[link]) {
			m.out.Balanced = append(m.out.Balanced, vip.BalancedServer{Addr: a, Port: m.ControlPlane.BalancedPort,
				To: netip.AddrPortFrom(own[i], m.ControlPlane.Port)})
		}
	}
}
