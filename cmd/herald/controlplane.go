package main

import (
	"fmt"
	"net/netip"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/health"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

// newAPIServerCheck makes the check of this node's API server, which wakes leases.
func (n *node) newAPIServerCheck(servers *kube.Servers, wake mailbox.Signal) (*health.APIServerCheck, error) {
	c := n.cfg.ControlPlane
	ask, err := servers.ReadinessCheck(c.CheckURL, c.CheckCA, n.log)
	if err != nil {
		return nil, fmt.Errorf("the health check of the API server (control_plane_health_check_...): %w", err)
	}
	return health.NewAPIServerCheck(health.APIServerOptions{
		Ask: ask, Period: c.CheckPeriod, Timeout: c.CheckTimeout, FailureThreshold: c.CheckFailures, Log: n.log,
		Changed: func(ready bool) {
			servers.SetOwnReady(ready)
			wake.Send() // the node lease has it for the other nodes
			n.agent.Poke()
		},
	}), nil
}

// controlPlaneRules returns what the plan must know of the control plane's VIP.
func controlPlaneRules(cfg config.Config) *plan.ControlPlane {
	var balanced uint16
	if cfg.ControlPlane.Balance.Enable {
		balanced = cfg.ControlPlane.Balance.Port
	}
	link := config.Auto
	if cfg.Link.Interface != "" { // which another node may call otherwise
		link = vip.DefaultLink
	}
	return &plan.ControlPlane{
		BalancedPort: balanced,
		Addresses:    cfg.ControlPlane.Addresses, Port: cfg.ControlPlane.Port,
		Lease:     cfg.ControlPlane.Lease,
		Interface: link,
	}
}

// ownAddresses returns this node's addresses without VIPs; nil until links are known.
func (n *node) ownAddresses() []netip.Addr {
	if n.links == nil {
		return nil
	}
	info := n.links.Info()
	return info.OwnAddresses()
}
