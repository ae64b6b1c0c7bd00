package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A route is one of Herald's routes in the table.
type route struct {
	prefix netip.Prefix
	link   int // its interface index
	kind   int // rtm_type
	entry  netlink.Route
}

// kernel is what a Table needs of rtnetlink(7).
type kernel struct {
	o      Options
	tables map[int]bool // families of which the kernel has more tables than its own
}

// withoutLink reports whether routes of the type have no link: blackhole, unreachable and prohibit.
func withoutLink(kind int) bool {
	return kind == unix.RTN_BLACKHOLE || kind == unix.RTN_UNREACHABLE || kind == unix.RTN_PROHIBIT
}

// index returns the interface index that routes by the link have.
func (k *kernel) index(link string) (int, error) {
	if withoutLink(k.o.Type) {
		return 0, nil
	}
	if link == "" {
		return 0, errors.New("this node has no default route to choose one by: set vip_interface")
	}
	i, err := net.InterfaceByName(link)
	if err != nil {
		return 0, fmt.Errorf("this node has no interface %q", link)
	}
	return i.Index, nil
}

func (k *kernel) list() (found []route, err error) {
	all, err := routesOf(netlink.FAMILY_ALL, k.o.ID, k.o.Protocol)
	for _, r := range all {
		if p, ok := prefixOf(r); ok {
			x := route{prefix: p, link: r.LinkIndex, kind: r.Type, entry: r}
			if withoutLink(r.Type) {
				x.link = 0 // IPv6 has lo there
			}
			found = append(found, x)
		}
	}
	return found, err
}

// add adds a route. It fails if the table has one to the prefix.
func (k *kernel) add(prefix netip.Prefix, link int) error {
	if !k.hasTables(prefix.Addr()) {
		return errors.New("this kernel has no such table (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES)")
	}
	loopback, err := net.InterfaceByIndex(link)
	if prefix.Addr().Is6() && k.o.Type == unix.RTN_UNICAST && err == nil && loopback.Flags&net.FlagLoopback != 0 {
		// The kernel would turn it into an unreachable route (ip6_route_info_create).
		return fmt.Errorf("an IPv6 route can't have %s as its link: set vip_interface to the link that packets to VIPs "+
			"come by", loopback.Name)
	}
	r := &netlink.Route{
		Dst:       &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
		LinkIndex: link,
		Table:     k.o.ID, Type: k.o.Type, Protocol: netlink.RouteProtocol(k.o.Protocol), Scope: netlink.SCOPE_LINK,
	}
	if prefix.Addr().Is6() || withoutLink(k.o.Type) {
		r.Scope = netlink.SCOPE_UNIVERSE
	}
	if k.o.Type == unix.RTN_LOCAL {
		r.Scope = netlink.SCOPE_HOST
	}
	err = netlink.RouteAdd(r)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("another program has one there, not of protocol %d: remove that, "+
			"or set vip_routingtableid to a table of Herald's own", k.o.Protocol)
	}
	return err
}

// hasTables reports whether the kernel has tables of a's family that need a rule. Built without rules, it would use
// such routes itself (fib_new_table, fib6_new_table).
func (k *kernel) hasTables(a netip.Addr) bool {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	if !k.tables[family] {
		_, err := ruleList(family)
		k.tables[family] = !noTables(err)
	}
	return k.tables[family]
}

// follow calls gone for each of Herald's routes that goes, until ctx ends or changes were lost.
func (k *kernel) follow(ctx context.Context, gone func(netip.Prefix)) error {
	updates, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	var failed error // written before updates is closed
	o := netlink.RouteSubscribeOptions{ErrorCallback: func(err error) { failed = err }, ReceiveBufferSize: 1 << 20}
	if err := netlink.RouteSubscribeWithOptions(updates, done, o); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			go func() { // until the subscription has ended it may wait for a receiver
				for range updates {
				}
			}()
			return ctx.Err()
		case u, ok := <-updates:
			if !ok {
				return failed
			}
			ours := u.Type == unix.RTM_DELROUTE && u.Table == k.o.ID && int(u.Protocol) == k.o.Protocol
			if p, ok := prefixOf(u.Route); ok && ours {
				gone(p)
			}
		}
	}
}

// prefixOf returns the prefix of a route; false for a default route.
func prefixOf(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok
}
