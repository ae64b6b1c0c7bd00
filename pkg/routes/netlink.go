// Package routes keeps two things in the kernel: routes to VIPs in a routing table, for another daemon to export
// (Table), and rules and routes by which what pods send leaves from the node that owns their Service's VIP (Egress).
package routes

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

// maxErrors is how many errors a Set names.
const maxErrors = 10

// complete reads a list of the kernel again, ten times at most, while it changes as it is read and some may be missing.
func complete[T any](read func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// routesOf is the routes of a family and a protocol number in a table, or in all by unix.RT_TABLE_UNSPEC.
func routesOf(family, table, protocol int) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: table, Protocol: netlink.RouteProtocol(protocol)}
	return complete(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
}

// noTables reports whether an error of ruleList says that the kernel has one table only, or not the family.
func noTables(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// delRoute removes a route. One that has gone is no error.
func delRoute(r netlink.Route) error {
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// addressOf is the address of n; zero for nil.
func addressOf(n *net.IPNet) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	return a.Unmap()
}

// join joins errors, maxErrors at most; nil ones don't count.
func join(errs []error) error {
	var some []error
	more := 0
	for _, err := range errs {
		switch {
		case err == nil:
		case len(some) < maxErrors:
			some = append(some, err)
		default:
			more++
		}
	}
	if more > 0 {
		some = append(some, fmt.Errorf("and %d more", more))
	}
	return errors.Join(some...)
}
