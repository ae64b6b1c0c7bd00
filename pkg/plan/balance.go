package plan

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// balance adds to the Plan the API servers over which this node spreads connections to the control plane's VIP
// (lb_enable), if it owns that.
func (p *pass) balance(units []*unit) {
	if p.ControlPlane == nil || p.ControlPlane.BalancedPort == 0 {
		return
	}
	for _, u := range units {
		for _, s := range u.services {
			// what is handed over is still answered for here
			if !s.localDelivery || u.claim.Foreign || u.claim.Holder != p.Self && !p.handingOver(u) {
				continue
			}
			p.replanAfter(lookAtTables)
			for _, a := range s.addrs {
				p.balanceAddress(s, a.Addr)
			}
		}
	}
}

// balanceAddress adds the API servers for one address of s.
func (p *pass) balanceAddress(s *service, a netip.Addr) {
	ready := slices.DeleteFunc(slices.Clone(p.alive), func(n *member) bool { return !n.Info.APIServerReady })
	if well := slices.DeleteFunc(slices.Clone(ready), func(n *member) bool {
		return n.refusal != "" || n.Unproven
	}); len(well) > 0 {
		ready = well
	}
	for _, n := range ready {
		link, _ := linkFor(&n.Info, s.Interface, a)
		own := n.Info.OwnAddresses(link)
		if i := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() }); link != "" && i >= 0 {
			p.out.Balanced = append(p.out.Balanced, vip.BalancedServer{Addr: a, Port: p.ControlPlane.BalancedPort,
				To: netip.AddrPortFrom(own[i], p.ControlPlane.Port)})
		}
	}
}
