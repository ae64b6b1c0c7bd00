package pool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/heraldvip/herald/pkg/vip"
)

// A choice is what is found for one Service.
type choice struct {
	a    *Allocator
	s    *service
	kept []netip.Addr

	taken   []netip.Addr // held by s already, but for 0.0.0.0 and ::
	pools   []string     // of each of taken
	reasons []string     // of each of taken
	missing []vip.Family // for which there is nothing
	problem string       // with missing: why
}

// choose sets taken and missing: one address of each family that s wants and has not kept, of
// one pool if any has all of them. If s names no family, either will do.
func (c *choice) choose() {
	pools, problem := c.a.candidates(c.s)
	for _, wanted := range c.wanted() {
		c.missing = wanted
		for _, p := range pools {
			if c.takeAll(p, wanted) {
				c.missing = nil
				return
			}
		}
	}
	if len(c.missing) > 1 { // each of the pool that has it
		var missing []vip.Family
		for _, f := range c.missing {
			if !slices.ContainsFunc(pools, func(p *Pool) bool { return c.take(p, f) }) {
				missing = append(missing, f)
			}
		}
		c.missing = missing
	}
	if len(c.missing) > 0 {
		if c.problem = cmp.Or(problem, c.whyMissing(pools)); problem != "" && len(c.kept) > 0 {
			c.problem = fmt.Sprintf("it has no %v address, and %s", c.missing[0], problem)
		}
	}
}

// wanted is lists of families that s lacks; the first that can be had will do.
func (c *choice) wanted() [][]vip.Family {
	families := c.s.Families
	switch {
	case len(families) > 0:
	case c.s.DualStack == vip.SingleStack && len(c.kept) > 0:
		return nil
	case c.s.DualStack == vip.SingleStack:
		return [][]vip.Family{{vip.IPv4}, {vip.IPv6}}
	default:
		families = []vip.Family{vip.IPv4, vip.IPv6}
	}
	var lacks []vip.Family
	for _, f := range families {
		if !slices.ContainsFunc(c.kept, func(x netip.Addr) bool { return vip.FamilyOf(x) == f }) {
			lacks = append(lacks, f)
		}
	}
	if lacks == nil {
		return nil
	}
	return [][]vip.Family{lacks}
}

// takeAll takes one address of each family from p, or none; it reports which. Of a pool that has nothing but a DHCP server for one family asked
// it takes that, if this is one of families.
func (c *choice) takeAll(p *Pool, families []vip.Family) bool {
	if len(p.DHCP) == 1 && len(p.Ranges) == 0 && len(c.kept) == 0 {
		if !slices.ContainsFunc(families, func(f vip.Family) bool { return c.a.mayLease(p.DHCP[0], f) }) {
			return false
		}
		c.add(p.DHCP[0].Unspecified(), p, "a DHCP server is asked, as pool "+p.Name+" says")
		return true
	}
	for _, f := range families {
		if !c.take(p, f) {
			c.giveBack()
			return false
		}
	}
	return true
}

// mayLease reports whether a Service that names the unspecified address of asked, and nothing else, is leased one of family f (dhcp_mode).
func (a *Allocator) mayLease(asked, f vip.Family) bool {
	if asked == vip.IPv4 && a.dhcpMode == "dual" {
		return true
	}
	return (f == vip.IPv6) == (asked == vip.IPv6 || a.dhcpMode == "ipv6")
}

// giveBack undoes what take took.
func (c *choice) giveBack() {
	for _, x := range c.taken {
		if !x.IsUnspecified() {
			freed, contested := c.a.freed, c.a.contested[x]
			c.a.putBack(c.s, x)
			if c.a.freed = freed; !contested { // nobody could have had it meanwhile, or come to it
				delete(c.a.contested, x)
			}
		}
	}
	c.taken, c.pools, c.reasons = nil, nil, nil
}

// take takes an address of a family from p: what s names already and nobody has; one to share;
// the first that is free; the one that has rested longest. It reports whether there was one.
func (c *choice) take(p *Pool, f vip.Family) bool {
	a := c.a
	if slices.Contains(p.DHCP, f) {
		c.add(f.Unspecified(), p, "a DHCP server is asked, as pool "+p.Name+" says")
		return true
	}
	for _, x := range c.s.Addresses {
		if vip.FamilyOf(x) == f && len(a.holders[x]) == 0 && p.Contains(x) && !a.isOccupied(x) {
			c.hold(x, p, fmt.Sprintf("%s is free again", x))
			return true
		}
	}
	if x, with := a.findShared(p, f, c.s); with != nil {
		c.hold(x, p, fmt.Sprintf("%s is of pool %s, shared with %s", x, p.Name, nameFor(c.s, with)))
		return true
	}
	if x, ok := a.spaces[p].findFree(f, a.isTaken); ok {
		c.hold(x, p, fmt.Sprintf("%s is of pool %s", x, p.Name))
		return true
	}
	for _, x := range a.restQueue {
		if a.rests(x) && vip.FamilyOf(x.addr) == f && len(a.holders[x.addr]) == 0 && a.named[x.addr] == 0 && !a.isOccupied(x.addr) && contains(a.spaces[p].family(f).ranges, x.addr) {
			c.hold(x.addr, p, fmt.Sprintf("%s is of pool %s, which has none that was not released lately", x.addr, p.Name))
			return true
		}
	}
	return false
}

// hold is add for an address that s has from now on.
func (c *choice) hold(x netip.Addr, p *Pool, reason string) {
	delete(c.a.resting, x)
	contested := c.a.contested[x]
	c.a.hold(c.s, x)
	if !contested {
		delete(c.a.contested, x) // what is shared was compared already
	}
	c.add(x, p, reason)
}

func (c *choice) add(x netip.Addr, p *Pool, reason string) {
	c.taken, c.pools, c.reasons = append(c.taken, x), append(c.pools, p.Name), append(c.reasons, reason)
}

// reason is why s gets what was taken.
func (c *choice) reason() string {
	switch {
	case len(c.taken) > 0:
		return strings.Join(c.reasons, "; ")
	case !c.s.isOfPools() && len(c.s.Own) == 0:
		return "the pool that it asks for has its address, too"
	}
	return "spec.ipFamilies has changed"
}

// poolNames is the pools of what was kept and taken, each once.
func (c *choice) poolNames(kept []netip.Addr) (names []string) {
	for _, x := range kept {
		if c.s.isOwn(x) {
			continue
		}
		names = append(names, c.poolsOf(x)...)
	}
	var out []string
	for _, n := range append(names, c.pools...) {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// poolsOf is the pool that x, which s has kept, is of: of those that have it the one that s names and was given it of, else one that s names, else the one
// that it was given it of, else the first by name. Where none has it, it is all that s was given addresses of: so s goes on being one that was.
func (c *choice) poolsOf(x netip.Addr) []string {
	a, given := c.a, strings.Split(c.s.Allocated, ",")
	var of []*Pool
	for _, name := range given {
		if p := a.pools.byName[name]; p != nil {
			of = append(of, p)
		}
	}
	first := firstWith(of, x)
	if len(c.s.Pools) > 0 && (first == nil || !slices.Contains(c.s.Pools, first.Name)) {
		asked, _ := a.candidates(c.s)
		first = cmp.Or(firstWith(asked, x), first)
	}
	if first = cmp.Or(first, a.pools.find(x)); first == nil {
		return given
	}
	return []string{first.Name}
}

// whyMissing is why none of pools has an address of the missing families, and what to do.
func (c *choice) whyMissing(pools []*Pool) string {
	var families, names []string
	for _, f := range c.missing {
		families = append(families, f.String())
	}
	for _, p := range pools {
		names = append(names, p.Name)
	}
	text := "no pool that is offered to it has a free"
	if len(pools) == 1 {
		text = "the pool that is offered to it has no free"
	}
	return fmt.Sprintf("%s %s address (%s); add addresses, or delete a Service that has one", text, strings.Join(families, " and "), strings.Join(names, ", "))
}

// findShared is the first address of p that s may share by its sharing key, or else by allow-share, and
// one of the Services that have it; nil if there is none.
func (a *Allocator) findShared(p *Pool, f vip.Family, s *service) (best netip.Addr, with *service) {
	space := a.spaces[p]
	if len(s.Ports) == 0 {
		return best, nil
	}
	if s.SharingKey != "" {
		tried := make(map[netip.Addr]bool)
		for o := range a.keyed[sharingKey{s.Service.Namespace, s.SharingKey}] {
			for _, x := range o.has {
				if o == s || tried[x] || vip.FamilyOf(x) != f || !p.Contains(x) || with != nil && !space.before(x, best) {
					continue
				}
				if tried[x] = true; a.mayShareWithAll(s, x) {
					best, with = x, o
				}
			}
		}
	}
	if with != nil {
		return best, slices.MinFunc(a.entitled(best), byAge)
	}
	if f != vip.IPv4 || !a.pools.sharing(s.Service.Namespace) {
		return best, nil
	}
	for i := range space.held {
		x := space.held[i]
		if space.descending {
			x = space.held[len(space.held)-1-i]
		}
		if a.mayShareWithAll(s, x) {
			return x, slices.MinFunc(a.entitled(x), byAge)
		}
	}
	return best, nil
}

// mayShareWithAll reports whether s is given x beside all that keep it: each has the same sharing key in the same
// namespace, or shares it by allow-share, where not both have externalTrafficPolicy Local, since no node may have endpoints of both, and none has a port in common with s, or has no ports. What is reserved is given to nobody, though others may name it. Beside a Service of another namespace
// only one may come that has nothing else that it shares, or may share: no address that its status shows, none of another family by its
// sharing key, and no lease. That would have to move with x.
func (a *Allocator) mayShareWithAll(s *service, x netip.Addr) bool {
	if a.contested[x] || a.isOccupied(x) || contains(a.reserved, x) {
		return false
	}
	free := len(s.Shown) == 0 && s.Lease == "" && (s.SharingKey == "" || len(s.Families) == 1)
	for _, o := range a.entitled(x) {
		same := o.Service.Namespace == s.Service.Namespace
		byKey := o.SharingKey != "" && o.SharingKey == s.SharingKey && same
		byPool := a.shareByPool(x, s, o) && (same || free) && !(s.Manner.Local && o.Manner.Local)
		if o == s || o.Foreign || len(o.Ports) == 0 || !byKey && !byPool || overlap(o.ports, s.ports) {
			return false
		}
	}
	return true
}

// shareByPool reports whether allow-share is on for both Services, x is an IPv4 address of a pool, and they can be announced together.
func (a *Allocator) shareByPool(x netip.Addr, s, o *service) bool {
	return a.pools.MayShare(x, s.Service.Namespace, o.Service.Namespace) && a.canBeTogether(x, s, o)
}

// canBeTogether reports whether two Services that have x can be announced together: those of several namespaces must be announced in the same manner, or the one that comes
// later would not be announced at all (whyNotShared of package plan).
func (a *Allocator) canBeTogether(x netip.Addr, s, o *service) bool {
	one, other := s.Service.Namespace, o.Service.Namespace
	return one == other || !s.Manner.Local && s.Manner.equal(&o.Manner) && s.Lease == "" && o.Lease == "" && a.pools.Interface(one, x) == a.pools.Interface(other, x)
}

// candidates is the pools that s may get an address of, best first. If there is none, problem says why.
func (a *Allocator) candidates(s *service) (pools []*Pool, problem string) {
	ns := s.Service.Namespace
	if len(s.Pools) > 0 {
		return a.requested(s)
	}
	offered, known := a.offered[ns]
	if !known {
		offered = a.pools.offered(Namespace{ns, a.namespaces[ns]})
		a.offered[ns] = offered
	}
	for _, p := range offered {
		switch {
		case p.Broken && len(pools) == 0 && (p.provider || !p.Namespaces.All()):
			return nil, fmt.Sprintf("pool %s can't be read; correct its keys in the ConfigMap of pools", p.Name)
		case p.Broken:
		case p.Services == nil || p.Services.Matches(labels.Set(s.Labels)):
			pools = append(pools, p)
		}
	}
	if len(pools) == 0 {
		return nil, fmt.Sprintf("no pool is offered to namespace %s; add the key %s%s or %s%s to the ConfigMap of pools, or set the address on the Service", ns, cidrPrefix, ns, cidrPrefix, global)
	}
	return pools, ""
}

// requested is candidates of a Service that asks for pools by name, in the order in which it names them.
func (a *Allocator) requested(s *service) (pools []*Pool, problem string) {
	ns := s.Service.Namespace
	for _, name := range s.Pools {
		switch p := a.pools.byName[name]; {
		case p == nil:
			return nil, fmt.Sprintf("it asks for pool %s, which does not exist", quote(name))
		case !p.Namespaces.Contains(ns, a.namespaces[ns]):
			return nil, fmt.Sprintf("it asks for pool %s, which is not offered to namespace %s", p.Name, ns)
		case p.Broken:
			return nil, fmt.Sprintf("it asks for pool %s, which can't be read; correct its keys in the ConfigMap of pools", p.Name)
		default:
			pools = append(pools, p)
		}
	}
	return pools, ""
}
