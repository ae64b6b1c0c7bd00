package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/heraldvip/herald/pkg/vip"
)

// RoutingTable configures the routes to VIPs in a table of the kernel.
type RoutingTable struct {
	Enable   bool // vip_routingtable
	ID       int  // vip_routingtableid
	Type     int  // vip_routingtabletype: rtm_type of rtnetlink(7)
	Protocol int  // vip_routingprotocol: rtm_protocol, by which Herald knows its own
}

var routingOptions = inSection(groupRouting, []Option{
	{Env: "vip_routingtable", Flag: "table", Type: Bool, Default: "false",
		Meaning: "Put a route to each VIP into a routing table, for another daemon to export (BIRD, FRR, frr-k8s). On " +
			"each node that can serve the VIP, or with `svc_election` on its owner; for the control plane's VIP on each " +
			"node whose API server is ready. See bgp.md.",
		set: store(parseBool, func(c *Config) *bool { return &c.RoutingTable.Enable })},
	{Env: "vip_routingtableid", Flag: "tableID", Type: Int, Default: "198",
		Meaning: "The number of that table. None of the kernel's own (253 to 255), or of egress (19800 to 20055).",
		set:     where(withTable, store(parseTable, func(c *Config) *int { return &c.RoutingTable.ID }))},
	{Env: "vip_routingtabletype", Flag: "tableType", Type: Int, Default: "1",
		Meaning: "The type of the routes, by the kernel's numbers. 1 unicast, 2 local, 6 blackhole, 7 unreachable, 8 " +
			"prohibit. Unicast and local routes have the link of VIPs.",
		set: where(withTable, store(parseRouteType, func(c *Config) *int { return &c.RoutingTable.Type }))},
	{Env: "vip_routingprotocol", Flag: "routingProtocol", Type: Int, Default: "248",
		Meaning: "The protocol number of the routes, from 5. All routes of the table with this number are Herald's: those " +
			"to nothing that is a VIP are removed.",
		set: where(withTable, store(number(5, math.MaxUint8), func(c *Config) *int { return &c.RoutingTable.Protocol }))},
})

func withTable(c *Config) bool { return c.RoutingTable.Enable }

func parseTable(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > math.MaxInt32 || n >= 253 && n <= 255 || n >= vip.FirstEgressTable &&
		n <= vip.LastEgressTable {
		return 0, fmt.Errorf("must be a whole number from 1 to %d, and that of no table of the kernel's own (253 to 255) "+
			"or of egress (%d to %d)", math.MaxInt32, vip.FirstEgressTable, vip.LastEgressTable)
	}
	return n, nil
}

func parseRouteType(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err == nil && n == 0 { // kube-vip's default before v0.9, and unicast to it
		n = 1
	}
	if err != nil || !slices.Contains([]int{1, 2, 6, 7, 8}, n) {
		return 0, errors.New("must be 1 (unicast), 2 (local), 6 (blackhole), 7 (unreachable) or 8 (prohibit)")
	}
	return n, nil
}

// checkRoutingTable clears what has no effect without vip_routingtable.
func (p *parser) checkRoutingTable() {
	if !p.config.RoutingTable.Enable {
		p.warnWithout("vip_routingtable", routingOptions)
		p.config.RoutingTable = RoutingTable{}
	}
}

// warnWithout warns of each given option that has no effect without another of them.
func (p *parser) warnWithout(enable string, options []Option) {
	for _, o := range options {
		if s, ok := p.given[o.Env]; ok && o.Env != enable && !isDefault(o, s.Value) {
			p.warn("%s (%s) has no effect without %s=true", s.name, s.where, enable)
		}
	}
}
