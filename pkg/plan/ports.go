package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// ssdpPort is where UPnP gateways answer searches from (UPnP Device Architecture 2.0, section 1.3.3).
const ssdpPort = 1900

// lookAtPorts is how often a Plan with OpenPorts is made at least, so that they are back soon when another program has removed them, and don't
// expire (nft.Timeout).
const lookAtPorts = 5 * time.Second

// limitPorts adds to the Plan which ports of the addresses of Services in it are open (enable_service_security): those of all Services
// that have the address. An address is left out, so that all its ports are open, if every Service that has it is exempt
// (kube-vip.io/ignore-service-security); the control plane's VIP always is.
//
// Gateways answer Herald's searches, which it sends from the VIP of a Service that asks for UPnP.
func (p *pass) limitPorts(services []*service) {
	if !p.LimitPorts {
		return
	}
	sharing := make(map[netip.Addr][]*service)
	for _, s := range services {
		for _, a := range s.addrs {
			sharing[a.Addr] = append(sharing[a.Addr], s)
		}
	}
	for _, a := range p.out.Addresses {
		p.replanAfter(lookAtPorts)
		all := sharing[a.Addr]
		if !slices.ContainsFunc(all, func(s *service) bool { return !s.AllPorts && !s.localDelivery }) {
			continue
		}
		for _, s := range all {
			for _, port := range s.Ports {
				p.out.OpenPorts = append(p.out.OpenPorts, vip.OpenPort{Addr: a.Addr, Protocol: port.Protocol, Port: port.Port})
			}
			if s.Forward != nil && p.Forwarding != nil {
				p.out.OpenPorts = append(p.out.OpenPorts, vip.OpenPort{Addr: a.Addr, Protocol: "UDP", From: ssdpPort})
			}
		}
	}
}
