package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// errNoRules is that the kernel has no rules of the family, or not the family.
var errNoRules = errors.New("this kernel has none (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES)")

func listRules(family int) (own []netlink.Rule, err error) {
	all, err := complete(func() ([]netlink.Rule, error) { return ruleList(family) })
	if noTables(err) {
		return nil, errNoRules
	}
	for _, rule := range all {
		if rule.Priority == priority && rule.Protocol == protocol && isOurs(rule.Table) {
			rule.Family = family
			own = append(own, rule)
		}
	}
	return own, err
}

func listRoutes(family int) (own []netlink.Route, err error) {
	all, err := routesOf(family, unix.RT_TABLE_UNSPEC, protocol)
	for _, route := range all {
		if isOurs(route.Table) {
			own = append(own, route)
		}
	}
	return own, err
}

func isOurs(table int) bool { return table >= firstTable && table < firstTable+maxOwners }

// addRoute makes the owner the next hop of all in a table.
func addRoute(o owner, table int) error {
	link, err := net.InterfaceByName(o.link)
	if err != nil {
		return fmt.Errorf("what pods send can't be routed to %s: this node has no interface %q", o.via, o.link)
	}
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if o.via.Is6() {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	err = netlink.RouteReplace(&netlink.Route{
		Dst: all, Gw: o.via.AsSlice(), LinkIndex: link.Index, Table: table, Protocol: protocol,
		Flags: int(netlink.FLAG_ONLINK),
	})
	if err != nil {
		return fmt.Errorf("route to %s on %s in table %d: %w", o.via, o.link, table, err)
	}
	return nil
}

// addRule has marked packets of a pod routed by a table.
func (r *Egress) addRule(family int, pod netip.Addr, table int) error {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = family, priority, table, protocol
	rule.Src = &net.IPNet{IP: pod.AsSlice(), Mask: net.CIDRMask(pod.BitLen(), pod.BitLen())}
	rule.Mark, rule.Mask = r.mark, &r.mark
	if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule for what pod %s sends: %w", pod, err)
	}
	return nil
}

// removeRule removes a rule of listRules, if it is there.
func removeRule(rule netlink.Rule) error {
	if err := netlink.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("rule for what pod %s sends was not removed: %w", addressOf(rule.Src), err)
	}
	return nil
}

// removeRoute removes a route of listRoutes, if it is there.
func removeRoute(route netlink.Route) error {
	if err := delRoute(route); err != nil {
		return fmt.Errorf("route to %s in table %d was not removed: %w", route.Gw, route.Table, err)
	}
	return nil
}
