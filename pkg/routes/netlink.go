// Package routes keeps two things in the kernel: routes to VIPs in a table, for another daemon to export (Table), and
// rules and routes by which what pods send leaves from their VIP's owner (Egress).
package routes

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var ruleList = netlink.RuleList

// complete reads a list of the kernel again, up to ten times, if it changes meanwhile and some may be missing.
func complete[T any](read func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// routesOf is the routes of a family and protocol number in a table, or all (unix.RT_TABLE_UNSPEC).
func routesOf(family, table, protocol int) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: table, Protocol: netlink.RouteProtocol(protocol)}
	return complete(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
}

// noTables reports whether ruleList says that the kernel has one table, or not the family.
func noTables(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// delRoute removes a route, if it is there.
func delRoute(r netlink.Route) error {
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func addressOf(n *net.IPNet) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	return a.Unmap()
}
