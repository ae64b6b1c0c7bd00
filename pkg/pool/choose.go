package pool

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/heraldvip/herald/pkg/vip"
)

// choose adds one address of each family that s lacks to found, of one pool if possible, and returns what is missing.
func (p *pass) choose(s *service, pools []*Pool) (missing []vip.Family) {
	for _, lacks := range s.lacks(s.all()) {
		missing = lacks
		for _, x := range pools {
			if f := p.findAll(s, x, lacks); f != nil {
				s.found = append(s.found, f...)
				return nil
			}
		}
	}
	if len(missing) < 2 {
		return missing
	}
	return slices.DeleteFunc(slices.Clone(missing), func(family vip.Family) bool { // each of the pool that has it
		return slices.ContainsFunc(pools, func(x *Pool) bool {
			f, ok := p.findOne(s, x, family)
			if ok {
				s.found = append(s.found, f)
			}
			return ok
		})
	})
}

// all returns what s keeps and is given, by its families.
func (s *service) all() []netip.Addr {
	all := slices.Clone(s.kept)
	for _, f := range s.found {
		all = append(all, f.addr)
	}
	slices.SortStableFunc(all, func(x, y netip.Addr) int {
		return cmp.Compare(slices.Index(s.Families, vip.FamilyOf(x)), slices.Index(s.Families, vip.FamilyOf(y)))
	})
	return all
}

// lacks returns lists of families that s wants beside have, of which one will do; or nil.
func (s *service) lacks(have []netip.Addr) [][]vip.Family {
	families := s.Families
	switch {
	case len(families) > 0:
	case s.DualStack == vip.SingleStack && len(have) > 0:
		return nil
	case s.DualStack == vip.SingleStack:
		return [][]vip.Family{{vip.IPv4}, {vip.IPv6}}
	default:
		families = []vip.Family{vip.IPv4, vip.IPv6}
	}
	var lacks []vip.Family
	for _, f := range families {
		if !slices.ContainsFunc(have, func(x netip.Addr) bool { return vip.FamilyOf(x) == f }) {
			lacks = append(lacks, f)
		}
	}
	if lacks == nil {
		return nil
	}
	return [][]vip.Family{lacks}
}

// findAll returns one address of each family of x, or the lease of a pool that only leases; or nil.
func (p *pass) findAll(s *service, x *Pool, families []vip.Family) (all []found) {
	if len(x.DHCP) == 1 && len(x.Ranges) == 0 && len(s.kept)+len(s.found) == 0 {
		if !slices.ContainsFunc(families, func(f vip.Family) bool { return p.mayLease(x.DHCP[0], f) }) {
			return nil
		}
		return []found{x.askDHCP(x.DHCP[0])}
	}
	for _, family := range families {
		f, ok := p.findOne(s, x, family)
		if !ok {
			return nil
		}
		all = append(all, f)
	}
	return all
}

func (p *Pool) askDHCP(f vip.Family) found {
	return found{f.Unspecified(), p.Name, "a DHCP server is asked, as pool " + p.Name + " says"}
}

// mayLease reports whether who names asked alone is leased one of family f (dhcp_mode).
func (p *pass) mayLease(asked, f vip.Family) bool {
	if asked == vip.IPv4 && p.in.DHCPMode == "dual" {
		return true
	}
	return (f == vip.IPv6) == (asked == vip.IPv6 || p.in.DHCPMode == "ipv6")
}

// findOne returns an address of x for s: a shared, the first free, or the longest rested one.
func (p *pass) findOne(s *service, x *Pool, family vip.Family) (f found, ok bool) {
	if slices.Contains(x.DHCP, family) {
		return x.askDHCP(family), true
	}
	if a, with := p.findShared(s, x, family); with != nil {
		return found{a, x.Name, fmt.Sprintf("%s is of pool %s, shared with %s", a, x.Name, nameFor(s, with))}, true
	}
	space := p.space(x)
	if a, ok := space.findFree(family, func(a netip.Addr) bool {
		_, used := p.holders[a]
		_, rests := p.resting[a]
		return used || rests || p.isOccupied(a)
	}); ok {
		return found{a, x.Name, fmt.Sprintf("%s is of pool %s", a, x.Name)}, true
	}
	if a, ok := p.findResting(space.families[family]); ok {
		return found{a, x.Name, fmt.Sprintf("%s is of pool %s, which has none that was not released lately", a, x.Name)}, true
	}
	return found{}, false
}

func (p *pass) findResting(of *familySpace) (a netip.Addr, ok bool) {
	if p.rests == nil {
		p.rests = slices.SortedFunc(maps.Keys(p.resting),
			func(x, y netip.Addr) int { return cmp.Or(p.resting[x].Compare(p.resting[y]), x.Compare(y)) })
	}
	for ; of.rested < len(p.rests); of.rested++ { // no address before it comes free in this pass
		a = p.rests[of.rested]
		if _, used := p.holders[a]; !used && !p.isOccupied(a) && contains(of.ranges, a) {
			return a, true
		}
	}
	return a, false
}

func (p *pass) isOccupied(x netip.Addr) bool {
	_, ok := p.occupied[x]
	return ok
}

// isBarred reports whether x is given to nobody: reserved, or another host's.
func (p *pass) isBarred(x netip.Addr) bool { return p.isOccupied(x) || contains(p.reserved, x) }

// findShared returns the first address of x that s may share, by key if possible, and the oldest that has it.
func (p *pass) findShared(s *service, x *Pool, f vip.Family) (a netip.Addr, with *service) {
	if len(s.Ports) == 0 {
		return a, nil
	}
	var lists [][]netip.Addr
	if s.SharingKey != "" {
		lists = append(lists, p.keyed[sharingKey{s.Key.Namespace, s.SharingKey}])
	}
	if f == vip.IPv4 && ofNamespace(p.share, s.Key.Namespace) {
		lists = append(lists, p.heldIn(p.space(x)))
	}
	for _, list := range lists {
		// who waits in this pass gave up what it was to have: nobody has that
		may := func(a netip.Addr) bool {
			return vip.FamilyOf(a) == f && x.Contains(a) && len(p.holders[a]) > 0 && p.mayJoin(s, a)
		}
		if i := slices.IndexFunc(list, may); i >= 0 {
			return list[i], slices.MinFunc(p.holders[list[i]], byAge)
		}
	}
	return a, nil
}

// mayJoin reports whether s is given x beside all that have it, by sharing key or allow-share.
func (p *pass) mayJoin(s *service, x netip.Addr) bool {
	if p.isBarred(x) {
		return false
	}
	// what else it has would have to move, too
	free := len(s.shown) == 0 && s.Lease == "" && (s.SharingKey == "" || len(s.Families) == 1)
	for _, o := range p.holders[x] {
		same := o.Key.Namespace == s.Key.Namespace
		byKey := o.SharingKey != "" && o.SharingKey == s.SharingKey && same
		// no node may have endpoints of both
		byPool := p.MayShare(x, s.Key.Namespace, o.Key.Namespace) && !(s.Local && o.Local) &&
			(same || free && alike(s, o) && p.Interface(s.Key.Namespace, x) == p.Interface(o.Key.Namespace, x) &&
				p.onLinkOfPool(s, x) && p.onLinkOfPool(o, x))
		if o.Foreign || len(o.Ports) == 0 || !byKey && !byPool || overlap(o.sortedPorts(), s.sortedPorts()) {
			return false
		}
	}
	return true
}

// alike reports whether the plan lets Services of different namespaces share an address.
func alike(s, o *service) bool {
	return s.Peculiar() == "" && o.Peculiar() == "" && len(s.Families) <= 1 && len(o.Families) <= 1 && len(o.names) <= 1
}

func (p *pass) onLinkOfPool(s *service, x netip.Addr) bool {
	return s.Interface == "" || s.Interface == p.Interface(s.Key.Namespace, x)
}

// nameFor returns what readers of s are told of other (docs/why.md, "Who has an address").
func nameFor(s, other *service) string {
	if s.Key.Namespace != other.Key.Namespace {
		return "a Service of another namespace"
	}
	return "Service " + other.Key.String()
}

// sortedPorts returns protocol and number of each port as one number, sorted.
func (s *service) sortedPorts() []uint32 {
	if s.ports == nil {
		s.ports = make([]uint32, len(s.Ports))
		for i, p := range s.Ports {
			s.ports[i] = uint32((p.Protocol + " ")[0])<<16 | uint32(p.Port)
		}
		slices.Sort(s.ports)
	}
	return s.ports
}

// overlap reports whether sorted lists, of maybe ten thousand ports, share one.
func overlap(x, y []uint32) bool {
	for i, j := 0, 0; i < len(x) && j < len(y); {
		switch a, b := x[i], y[j]; {
		case a == b:
			return true
		case a < b:
			i++
		default:
			j++
		}
	}
	return false
}

// give adds the Assignment of s, and remembers what s does not name yet.
func (p *pass) give(s *service) {
	all := s.all()
	if s.isContent(all) {
		return
	}
	var reasons, pools []string
	for _, x := range s.kept {
		if !s.isOwn(x) {
			pools = append(pools, p.poolsOf(s, x)...)
		}
	}
	for _, f := range s.found {
		reasons, pools = append(reasons, f.reason), append(pools, f.pool)
		if !f.addr.IsUnspecified() {
			p.pending[s.UID] = append(p.pending[s.UID], f)
		}
	}
	reason := strings.Join(reasons, "; ")
	switch {
	case reason != "":
	case !s.isOfPools() && len(s.own) == 0:
		reason = "the pool that it asks for has its address, too"
	default:
		reason = "spec.ipFamilies has changed"
	}
	p.assignments = append(p.assignments, vip.Assignment{
		Service: s.Key, UID: s.UID, Addresses: all, Pool: strings.Join(vip.AppendUnique(nil, pools...), ","),
		Reason: s.lost + reason, Had: s.Addresses, HadPool: s.Allocated, Own: s.own, Remove: len(pools) == 0,
	})
}

// poolsOf returns the pool of x, which s keeps, or else all that s was given addresses of.
func (p *pass) poolsOf(s *service, x netip.Addr) []string {
	given := strings.Split(s.Allocated, ",")
	var of []*Pool
	for _, name := range given {
		if o := p.byName[name]; o != nil {
			of = append(of, o)
		}
	}
	first := firstWith(of, x)
	if len(s.Pools) > 0 && (first == nil || !slices.Contains(s.Pools, first.Name)) {
		asked, _ := p.candidates(s)
		first = cmp.Or(firstWith(asked, x), first)
	}
	if first = cmp.Or(first, p.Pools.find(x)); first == nil {
		// so it goes on being one that was given
		return given
	}
	return []string{first.Name}
}

// whyMissing returns why the missing families have no address, and what to do.
func (s *service) whyMissing(missing []vip.Family, pools []*Pool, problem string) string {
	switch {
	case problem != "" && len(s.kept) > 0:
		return fmt.Sprintf("it has no %v address, and %s", missing[0], problem)
	case problem != "":
		return problem
	}
	var families, names []string
	for _, f := range missing {
		families = append(families, f.String())
	}
	for _, p := range pools {
		names = append(names, p.Name)
	}
	text := "no pool that is offered to it has a free"
	if len(pools) == 1 {
		text = "the pool that is offered to it has no free"
	}
	return fmt.Sprintf("%s %s address (%s); add addresses, or delete a Service that has one",
		text, strings.Join(families, " and "), strings.Join(names, ", "))
}

// asksForAnotherPool reports whether s asks for other pools than that of x, which it names.
func (p *pass) asksForAnotherPool(s *service, x netip.Addr) bool {
	if s.isOfPools() || s.isOwn(x) {
		return false
	}
	pools, _ := p.candidates(s)
	return firstWith(pools, x) == nil
}

// isOfPools reports whether s has addresses of pools that it names.
func (s *service) isOfPools() bool {
	return len(s.Pools) == 0 || s.Allocated == "" || slices.ContainsFunc(strings.Split(s.Allocated, ","),
		func(name string) bool { return slices.Contains(s.Pools, name) })
}

// candidates returns the pools for s, best first, or why there are none.
func (p *pass) candidates(s *service) (pools []*Pool, problem string) {
	ns, namespaces := s.Key.Namespace, p.in.Source.Namespaces
	if len(s.Pools) > 0 {
		return p.requested(s)
	}
	bySelector := func(x *Pool) bool { return x.Namespaces.Selector != nil }
	if len(namespaces) > 0 && namespaces[ns] == nil && slices.ContainsFunc(p.own, bySelector) {
		return nil, "the labels of namespace " + ns + " are not known yet"
	}
	offered, known := p.offers[ns]
	if !known {
		offered = p.offered(ns, namespaces[ns])
		p.offers[ns] = offered
	}
	for _, x := range offered {
		switch {
		case x.Broken && len(pools) == 0 && (x.provider || !x.Namespaces.All()):
			return nil, fmt.Sprintf("pool %s can't be read; correct its keys in the ConfigMap of pools", x.Name)
		case x.Broken:
		case x.Services == nil || x.Services.Matches(labels.Set(s.Labels)):
			pools = append(pools, x)
		}
	}
	if len(pools) == 0 {
		return nil, fmt.Sprintf("no pool is offered to namespace %s; add the key %s%s or %s%s to the ConfigMap of pools, or "+
			"set the address on the Service", ns, cidrPrefix, ns, cidrPrefix, global)
	}
	return pools, ""
}

// requested returns the pools that s names, in order, or why it gets none.
func (p *pass) requested(s *service) (pools []*Pool, problem string) {
	ns := s.Key.Namespace
	for _, name := range s.Pools {
		switch x := p.byName[name]; {
		case x == nil:
			return nil, fmt.Sprintf("it asks for pool %s, which does not exist", vip.Quote(name))
		case !x.Namespaces.Contains(ns, p.in.Source.Namespaces[ns]):
			return nil, fmt.Sprintf("it asks for pool %s, which is not offered to namespace %s", x.Name, ns)
		case x.Broken:
			return nil, fmt.Sprintf("it asks for pool %s, which can't be read; correct its keys in the ConfigMap of pools",
				x.Name)
		default:
			pools = append(pools, x)
		}
	}
	return pools, ""
}
