package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// Traces describes the routes of a protocol number (rtm_protocol) in all routing tables of this network namespace,
// and the rules and routes of egress.
func Traces(protocol int) (found []string, err error) {
	routes, err := ofProtocol(protocol)
	for _, r := range routes {
		found = append(found, fmt.Sprintf("route to %s in table %d", r.Dst, r.Table))
	}
	rules, err2 := egressTraces()
	return append(found, rules...), errors.Join(err, err2)
}

// RemoveTraces removes what Traces describes.
func RemoveTraces(protocol int) error {
	routes, err := ofProtocol(protocol)
	errs := []error{err}
	for _, r := range routes {
		if err := delRoute(r); err != nil {
			errs = append(errs, fmt.Errorf("route to %s in table %d: %w", r.Dst, r.Table, err))
		}
	}
	return errors.Join(append(errs, NewEgress(0).write(nil))...)
}

// egressTraces describes Herald's rules and routes in this network namespace.
func egressTraces() (found []string, err error) {
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

// Table and protocol number that routes to VIPs have by default.
const (
	defaultID       = 198
	defaultProtocol = 248
)

// WarnOfRoutes logs that there are routes of the protocol number and in the table that Herald's have by default. It
// is for a process without vip_routingtable: they may be those of one that was killed, but kube-vip's are just like
// them, and so nothing is removed.
func WarnOfRoutes(log *slog.Logger) {
	k := &kernel{o: Options{ID: defaultID, Protocol: defaultProtocol}}
	switch found, err := k.list(); {
	case err != nil:
		log.Debug("a routing table can't be read", "table", defaultID, "err", err)
	case len(found) > 0:
		log.Warn(fmt.Sprintf("a routing table has routes that Herald may have left when it was killed, and does not keep, "+
			"since vip_routingtable is off. If they are not kube-vip's, remove them: "+
			"ip route flush table %d proto %d; ip -6 route flush table %d proto %d", defaultID, defaultProtocol, defaultID,
			defaultProtocol),
			"table", defaultID, "routes", len(found))
	}
}

// ofProtocol returns the routes of a protocol number in all tables but those of egress.
func ofProtocol(protocol int) ([]netlink.Route, error) {
	all, err := routesOf(netlink.FAMILY_ALL, unix.RT_TABLE_UNSPEC, protocol)
	return slices.DeleteFunc(all, ofEgress), err
}

// ofEgress reports whether a route is in a table of egress, whose routes have the protocol number that
// vip_routingprotocol has by default.
func ofEgress(r netlink.Route) bool {
	return r.Table >= vip.FirstEgressTable && r.Table <= vip.LastEgressTable
}
