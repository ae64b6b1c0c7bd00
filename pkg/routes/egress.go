package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// What Herald's rules and routes have.
const (
	priority   = 1980 // of rules: before those of the tables main and default (32766, 32767)
	firstTable = vip.FirstEgressTable
	maxOwners  = vip.LastEgressTable - vip.FirstEgressTable + 1 // nodes to which one node routes at once, for each family
	protocol   = 248                                            // rtm_protocol, as vip_routingprotocol has it by default
)

// relistEgress is how often Set reads rules and routes at least, for other programs may change them.
const relistEgress = 5 * time.Second

// An Egress routes what this node's pods send to the node that owns the VIP of their Service (kube-vip.io/egress),
// so that it leaves the cluster from there, with the VIP as its source. Nftables marks these packets (nft.Egress); a
// rule of the routing policy database (ip-rule(8)) for each pod and that mark has them routed by a table of the
// owner:
//
//	1980: from 10.244.1.7 fwmark 0x1000/0x1000 lookup 19800 proto 248
//	default via 192.168.0.12 dev eth0 onlink table 19800 proto 248
//
// Rules and routes of Herald are those with its protocol number in these tables; those of others are never touched.
// Rules stay when the process is killed, but nftables forgets soon which packets to mark (vip.EgressTimeout), and
// without a mark no rule matches. Only one goroutine, the agent's, may use it.
type Egress struct {
	mark    uint32
	written wanted
	at      time.Time // when the kernel was last read
	known   bool      // written is what the kernel has, as far as this process knows
}

// NewEgress makes an Egress for packets with the bit mark. The first Set replaces what an earlier process left.
func NewEgress(mark uint32) *Egress { return &Egress{mark: mark} }

type owner struct {
	via  netip.Addr
	link string
}

func (o owner) compare(p owner) int { return cmp.Or(o.via.Compare(p.via), cmp.Compare(o.link, p.link)) }

type wanted map[netip.Addr]owner

// Set makes Herald's rules and routes those of want; entries without Via need none. It reads the kernel's once in 5 s,
// and when want has changed, and returns what it could make; the error joins, in a stable order, ten of each
// family.
func (r *Egress) Set(_ context.Context, want []vip.Egress) ([]vip.Egress, error) {
	now, all := time.Now(), make(wanted)
	for _, e := range want {
		if e.Via.IsValid() {
			for _, pod := range e.Pods {
				all[pod] = owner{e.Via, e.Link}
			}
		}
	}
	if r.known && maps.Equal(all, r.written) && (len(all) == 0 || now.Sub(r.at) < relistEgress) {
		return want, nil
	}
	err := r.write(all)
	r.written, r.at, r.known = all, now, err == nil
	if err != nil {
		return nil, err
	}
	return want, nil
}

func (r *Egress) write(all wanted) error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		own := maps.Clone(all)
		maps.DeleteFunc(own, func(a netip.Addr, _ owner) bool { return a.Is4() != (family == unix.AF_INET) })
		errs = append(errs, r.writeFamily(family, own))
	}
	return errors.Join(errs...)
}

// writeFamily gives each owner a table. It adds missing routes and then rules, and removes unwanted rules and then
// routes.
func (r *Egress) writeFamily(family int, all wanted) error {
	rules, err := listRules(family)
	if errors.Is(err, errNoRules) && len(all) == 0 {
		return nil
	}
	if err != nil { // without rules there is one table: a route would replace the node's own default route (fib_new_table)
		return fmt.Errorf("rules of the routing policy database can't be read: %w", err)
	}
	routes, err := listRoutes(family)
	if err != nil {
		return fmt.Errorf("routes of egress can't be read: %w", err)
	}
	tables := assignTables(all, routes)
	var errs []error
	for _, o := range slices.SortedFunc(maps.Keys(tables), owner.compare) { // in order: errors read the same each time
		errs = append(errs, addRoute(o, tables[o]))
	}
	kept := make(map[netip.Addr]bool)
	var unwanted []netlink.Rule
	for _, rule := range rules {
		pod := addressOf(rule.Src)
		if table := tables[all[pod]]; table != 0 && rule.Table == table && !kept[pod] &&
			rule.Mark == r.mark && rule.Mask != nil && *rule.Mask == r.mark {
			kept[pod] = true
		} else {
			unwanted = append(unwanted, rule)
		}
	}
	for _, pod := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		o := all[pod]
		switch {
		case tables[o] == 0:
			errs = append(errs, fmt.Errorf(
				"what pod %s sends can't be routed to %s: this node routes to %d others already", pod, o.via, maxOwners))
		case !kept[pod]:
			errs = append(errs, r.addRule(family, pod, tables[o]))
		}
	}
	for _, rule := range unwanted {
		errs = append(errs, removeRule(rule))
	}
	for _, route := range routes {
		if !slices.Contains(slices.Collect(maps.Values(tables)), route.Table) {
			errs = append(errs, removeRoute(route))
		}
	}
	return vip.JoinErrors(errs)
}

// assignTables returns each owner's table: the one with its route, or else the lowest free. If none is left, late
// owners have none.
func assignTables(all wanted, routes []netlink.Route) map[owner]int {
	tables, taken := make(map[owner]int), make(map[int]bool)
	owners := slices.Compact(slices.SortedFunc(maps.Values(all), owner.compare))
	for _, route := range routes {
		via, _ := netip.AddrFromSlice(route.Gw)
		link, err := net.InterfaceByIndex(route.LinkIndex)
		if err != nil {
			continue
		}
		if o := (owner{via.Unmap(), link.Name}); slices.Contains(owners, o) && tables[o] == 0 && !taken[route.Table] {
			tables[o], taken[route.Table] = route.Table, true
		}
	}
	for _, o := range owners {
		for table := firstTable; tables[o] == 0 && table < firstTable+maxOwners; table++ {
			if !taken[table] {
				tables[o], taken[table] = table, true
			}
		}
	}
	return tables
}

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
