package plan

import (
	"net/netip"

	"github.com/heraldvip/herald/pkg/vip"
)

// A ControlPlane is the VIP of the API servers, as the options have it. In the plan
// it is one more Service, the oldest of all, with externalTrafficPolicy Local: its
// endpoints are the nodes whose own API server is ready.
type ControlPlane struct {
	Addresses []netip.Addr
	Port      uint16
	Lease     vip.Key
	Interface string // the link that carries it; "" is the one of VIPs
}

// ControlPlaneKey names the Service that stands for the API servers. No Service of
// Kubernetes is without a namespace.
var ControlPlaneKey = vip.Key{Name: "control-plane"}

// service is the Service of the API servers in w. If no API server is ready, the node
// that has the VIP is as good as any: it is what terminates.
func (c *ControlPlane) service(w vip.World) vip.Service {
	s := vip.Service{
		Key: ControlPlaneKey, LoadBalancer: true, Local: true,
		Addresses: c.Addresses, Source: "address", Interface: c.Interface,
		Ports: []vip.Port{{Protocol: "TCP", Port: c.Port}},
	}
	for _, m := range w.Members {
		if m.Alive && m.Info.APIServerReady {
			s.Endpoints.Ready = append(s.Endpoints.Ready, m.Name)
		}
	}
	if h := w.Claims[c.Lease]; h.Valid && h.Holder != "" {
		s.Endpoints.Terminating = []string{h.Holder}
	}
	return s
}
