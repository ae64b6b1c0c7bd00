package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ruleList is netlink.RuleList; a test replaces it.
var ruleList = netlink.RuleList

// errNoRules is the error of listRules where the kernel has no rules of the family, or not the family.
var errNoRules = errors.New("this kernel has none (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES)")

// listRules returns Herald's rules of a family.
func listRules(family int) (own []netlink.Rule, err error) {
	all, err := ruleList(family)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
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

// listRoutes returns Herald's routes of a family.
func listRoutes(family int) (own []netlink.Route, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: protocol}
	all, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	for _, route := range all {
		if isOurs(route.Table) {
			own = append(own, route)
		}
	}
	return own, err
}

// isOurs reports whether a table is one of those for owners.
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
	err = netlink.RouteReplace(&netlink.Route{Dst: all, Gw: o.via.AsSlice(), LinkIndex: link.Index, Table: table, Protocol: protocol, Flags: int(netlink.FLAG_ONLINK)})
	if err != nil {
		return fmt.Errorf("route to %s on %s in table %d: %w", o.via, o.link, table, err)
	}
	return nil
}

// addRule has marked packets of a pod routed by a table.
func (r *Routes) addRule(family int, pod netip.Addr, table int) error {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = family, priority, table, protocol
	rule.Src = &net.IPNet{IP: pod.AsSlice(), Mask: net.CIDRMask(pod.BitLen(), pod.BitLen())}
	rule.Mark, rule.Mask = r.mark, &r.mark
	if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule for what pod %s sends: %w", pod, err)
	}
	return nil
}

// removeRule removes a rule that listRules returned. One that isn't there is no error.
func removeRule(rule netlink.Rule) error {
	if err := netlink.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("rule for what pod %s sends was not removed: %w", addressOf(rule.Src), err)
	}
	return nil
}

// removeRoute removes a route that listRoutes returned. One that isn't there is no error.
func removeRoute(route netlink.Route) error {
	if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("route to %s in table %d was not removed: %w", route.Gw, route.Table, err)
	}
	return nil
}

// addressOf returns the address of a network of one host.
func addressOf(n *net.IPNet) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	return a.Unmap()
}

// Traces describes Herald's rules and routes in this network namespace.
func Traces() (found []string, err error) {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := listRules(family)
		if !errors.Is(err, errNoRules) {
			errs = append(errs, err)
		}
		for _, rule := range rules {
			found = append(found, fmt.Sprintf("rule for what pod %s sends, to table %d", addressOf(rule.Src), rule.Table))
		}
		routes, err := listRoutes(family)
		errs = append(errs, err)
		for _, route := range routes {
			found = append(found, fmt.Sprintf("default route via %s in table %d", route.Gw, route.Table))
		}
	}
	return found, errors.Join(errs...)
}

// RemoveTraces removes what Traces describes.
func RemoveTraces() error {
	return New(0, nil).write(nil)
}
