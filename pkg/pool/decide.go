package pool

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Decide returns all that is to be written on Services and is not seen on them yet, and all
// Services that wait, sorted by Key. The oldest Service is served first.
func (a *Allocator) Decide(now time.Time) []vip.Assignment {
	a.endRests(now)
	a.endOccupied(now)
	for _, x := range slices.SortedFunc(maps.Keys(a.contested), netip.Addr.Compare) {
		a.settle(x)
	}
	clear(a.contested)
	if a.freed {
		a.freed = false
		maps.Copy(a.changed, a.open)
	}
	for _, s := range slices.SortedFunc(maps.Keys(a.changed), byAge) {
		a.serve(s)
	}
	clear(a.changed)
	var out []vip.Assignment
	for s := range a.pending {
		out = append(out, vip.Assignment{Service: s.Service, UID: s.UID, Addresses: s.given, Pool: strings.Join(s.pools, ","), Reason: s.reason, Had: s.Named, HadPool: s.Allocated, Own: s.Own})
	}
	for s := range a.open {
		if !a.pending[s] && s.reason != "" {
			x := vip.Assignment{Service: s.Service, UID: s.UID, Reason: s.reason}
			if pools, _ := a.candidates(s); len(pools) > 0 {
				x.Pool = pools[0].Name
			}
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(x, y vip.Assignment) int { return x.Service.Compare(y.Service) })
	return out
}

// settle takes x from Services whose address was allocated and that may not share it with
// others that rank before them (see ranked), or that have added a port which another has on x.
func (a *Allocator) settle(x netip.Addr) {
	var keep []*service
	holders := ranked(a.holders[x], x, a.pending)
	for _, s := range holders {
		by := a.conflicting(keep, s, x)
		if by == nil {
			by = portShownOf(holders, s, x)
		}
		switch {
		case by == nil:
			keep = append(keep, s)
		case !s.isOwn(x) && (s.Allocated != "" && !s.Foreign || a.pending[s]):
			a.lose(s, x, fmt.Sprintf("%s belongs to %s", x, nameFor(s, by)))
		}
	}
}

// nameFor returns what those who may read s are told of other: its name, if they may read that as well (docs/why.md, "Who has an address").
func nameFor(s, other *service) string {
	if s.Service.Namespace != other.Service.Namespace {
		return "a Service of another namespace"
	}
	return "Service " + other.Service.String()
}

// entitled returns the Services that have or name x, without those that name it only and may not share it with one whose
// status shows it: these do not keep others from sharing it.
func (a *Allocator) entitled(x netip.Addr) []*service {
	holders := a.holders[x]
	shows := func(s *service) bool { return slices.Contains(s.Shown, x) }
	if len(holders) == 1 || !slices.ContainsFunc(holders, shows) {
		return holders
	}
	showing := slices.DeleteFunc(slices.Clone(holders), func(s *service) bool { return !shows(s) })
	return slices.DeleteFunc(slices.Clone(holders), func(s *service) bool { return !shows(s) && a.conflicting(showing, s, x) != nil })
}

// ranked orders the Services that have x, those first that keep it: whose status shows it,
// then those to which it was allocated, then those on which a person set it, then those that
// were given it and do not have it yet; of these the older ones first. So nobody takes an
// address away by asking for it.
func ranked(holders []*service, x netip.Addr, pending map[*service]bool) []*service {
	rank := func(s *service) int {
		switch {
		case slices.Contains(s.Shown, x):
			return 0
		case !slices.Contains(s.Addresses, x) && pending[s]:
			return 3
		case !s.isOwn(x):
			return 1
		}
		return 2
	}
	return slices.SortedFunc(slices.Values(holders), func(p, q *service) int { return cmp.Or(cmp.Compare(rank(p), rank(q)), byAge(p, q)) })
}

// conflicting is the first of holders that s may not share x with; nil if there is none.
// Two may share it if they have no port in common, and are of one namespace, have the same
// sharing key and can be announced together, may by allow-share, or both show it already: an edit of pools takes nothing away.
func (a *Allocator) conflicting(holders []*service, s *service, x netip.Addr) *service {
	for _, o := range holders {
		consent := o.Service.Namespace == s.Service.Namespace ||
			o.SharingKey != "" && o.SharingKey == s.SharingKey && a.canBeTogether(x, s, o) ||
			a.shareByPool(x, s, o) ||
			slices.Contains(o.Shown, x) && slices.Contains(s.Shown, x)
		if !consent || overlap(o.ports, s.ports) {
			return o
		}
	}
	return nil
}

// portShownOf is the first of holders whose status shows x with a port that s has, while that of s shows x, and not that port: s has added it since. nil if
// there is none. The plan has the others keep the port, too (setPortsInStatus).
func portShownOf(holders []*service, s *service, x netip.Addr) *service {
	if len(holders) < 2 || !slices.Contains(s.Shown, x) {
		return nil
	}
	added := without(s.ports, s.shown)
	for _, o := range holders {
		if o != s && slices.Contains(o.Shown, x) && overlap(added, o.shown) {
			return o
		}
	}
	return nil
}

// sortedPorts returns protocol and number of each port as one number, sorted. Protocols of Services differ in their first letter.
func sortedPorts(ports []vip.Port) []uint32 {
	all := make([]uint32, len(ports))
	for i, p := range ports {
		all[i] = uint32((p.Protocol + " ")[0])<<16 | uint32(p.Port)
	}
	slices.Sort(all)
	return all
}

// overlap reports whether two lists as sortedPorts returns them have a port in common: number and protocol. Each may have ten thousand.
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

// without returns those of ports that are not in what. Both must be as sortedPorts returns them; so is the result.
func without(ports, what []uint32) (out []uint32) {
	for _, p := range ports {
		for len(what) > 0 && what[0] < p {
			what = what[1:]
		}
		if len(what) == 0 || what[0] != p {
			out = append(out, p)
		}
	}
	return out
}

// lose takes x from s, so that it gets another.
func (a *Allocator) lose(s *service, x netip.Addr, reason string) {
	a.unhold(s, x)
	s.has = slices.DeleteFunc(slices.Clone(s.has), func(y netip.Addr) bool { return x == y })
	s.lost = reason
	delete(a.pending, s)
	a.changed[s] = true
}

// serve decides what becomes of s: it is put to pending, to open, to both or to none.
func (a *Allocator) serve(s *service) {
	delete(a.open, s)
	if s.Foreign || s.Allocated == "" && len(s.Addresses) > 0 && len(s.Own) == 0 {
		return
	}
	dhcp := slices.IndexFunc(s.Addresses, netip.Addr.IsUnspecified)
	if dhcp >= 0 && !a.asksForAnotherPool(s, s.Addresses[dhcp]) || a.pending[s] && slices.ContainsFunc(s.given, netip.Addr.IsUnspecified) {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(s.has), func(x netip.Addr) bool {
		if s.isOwn(x) && len(s.Own) > 0 {
			return false
		}
		leased := dhcp >= 0 && slices.Contains(s.Addresses, x)
		return leased || len(s.Families) > 0 && !slices.Contains(s.Families, vip.FamilyOf(x)) || a.asksForAnotherPool(s, x) || s.Renumber && a.isOutside(s, x)
	})
	c := choice{a: a, s: s, kept: kept}
	c.choose()
	switch {
	case len(c.missing) > 0 && (s.DualStack == vip.RequireDualStack || len(kept)+len(c.taken) == 0 || !a.hasAllNamed(s)):
		c.giveBack()
		a.withdraw(s) // it waits, and keeps what is written on it
		s.reason = joinReasons(s.lost, c.problem)
		a.open[s] = true
		return
	case len(c.missing) > 0:
		a.open[s] = true // one family is enough for now
	}
	a.give(s, kept, &c)
}

// asksForAnotherPool reports whether s is to be given another address for x, which is written on it: it names pools, was allocated its addresses from none
// of them (its user has changed the annotation since), and none of them has x. A pool that has other addresses now is not meant, nor is one that was renamed.
func (a *Allocator) asksForAnotherPool(s *service, x netip.Addr) bool {
	if s.isOfPools() || !slices.Contains(s.Addresses, x) || s.isOwn(x) {
		return false
	}
	pools, _ := a.candidates(s)
	return firstWith(pools, x) == nil
}

// isOfPools reports whether s names no pools, was allocated nothing, or was allocated its addresses from one that it names.
func (s *service) isOfPools() bool {
	if len(s.Pools) == 0 || s.Allocated == "" {
		return true
	}
	for name := range strings.SplitSeq(s.Allocated, ",") {
		if slices.Contains(s.Pools, name) {
			return true
		}
	}
	return false
}

// hasAllNamed reports whether s holds all addresses that are written on it, but for 0.0.0.0 and ::.
func (a *Allocator) hasAllNamed(s *service) bool {
	return !slices.ContainsFunc(s.Addresses, func(x netip.Addr) bool { return !x.IsUnspecified() && !slices.Contains(s.has, x) })
}

// give makes s have what it kept and what was chosen, in the order of its families. What it
// does not keep is released once it is no longer seen on it.
func (a *Allocator) give(s *service, kept []netip.Addr, c *choice) {
	all := slices.Concat(kept, c.taken)
	slices.SortStableFunc(all, func(x, y netip.Addr) int {
		return cmp.Compare(slices.Index(s.Families, vip.FamilyOf(x)), slices.Index(s.Families, vip.FamilyOf(y)))
	})
	for _, x := range c.taken {
		if !x.IsUnspecified() && !slices.Contains(s.has, x) {
			s.has = append(slices.Clip(s.has), x)
		}
	}
	switch {
	case sameSet(all, s.Addresses) && s.Allocated != "" && s.isOfPools():
		s.reason = "" // it has what there is, and does not wait
		delete(a.pending, s)
	case !a.pending[s] || !slices.Equal(all, s.given):
		s.given, s.pools, s.reason = all, c.poolNames(kept), joinReasons(s.lost, c.reason())
		a.pending[s] = true
	}
}

// sameSet reports whether two lists have the same addresses, in whatever order: what a Service
// has is not written again to change the order.
func sameSet(x, y []netip.Addr) bool {
	return len(x) == len(y) && !slices.ContainsFunc(x, func(a netip.Addr) bool { return !slices.Contains(y, a) })
}

// joinReasons puts two reasons, which may be empty, into one.
func joinReasons(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + "; " + second
}
