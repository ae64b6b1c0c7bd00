package pool

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A space is what can be given of a pool: where to look for the next free address.
type space struct {
	pool       *Pool
	descending bool
	families   [2]familySpace // IPv4, IPv6
	share      bool           // allow-share is on for some namespace
	held       []netip.Addr   // with share: IPv4 addresses of the pool that Services have, sorted
}

// A familySpace is the addresses of one family in a space.
type familySpace struct {
	ranges []Range    // what may be given, isEnd included
	next   netip.Addr // of ranges; none before it, in the order of search, is free
	full   bool       // none at all is free
	used   int        // how many Services have or name, reserved ones included
	given  int        // how many of ranges, isEnd left out, Services have or name
}

// newSpace returns what may be given of p, without reserved, which must be as merge returns it.
func newSpace(p *Pool, reserved []Range, all *Pools) *space {
	s := &space{pool: p, descending: all.descending, share: all.someShare()}
	descending := s.descending
	for _, r := range subtract(p.search, reserved) {
		of := &s.families[0]
		if r.From.Is6() {
			of = &s.families[1]
		}
		of.ranges = append(of.ranges, r)
	}
	for i := range s.families {
		of := &s.families[i]
		switch n := len(of.ranges); {
		case n == 0:
			of.full = true
		case descending:
			of.next = of.ranges[n-1].To
		default:
			of.next = of.ranges[0].From
		}
	}
	return s
}

func (s *space) family(f vip.Family) *familySpace {
	if f == vip.IPv4 {
		return &s.families[0]
	}
	return &s.families[1]
}

// findFree is the first address of a family that is not taken, and true.
func (s *space) findFree(f vip.Family, taken func(netip.Addr) bool) (netip.Addr, bool) {
	of := s.family(f)
	if of.full {
		return netip.Addr{}, false
	}
	i, _ := indexOf(of.ranges, of.next)
	for ; i >= 0 && i < len(of.ranges); i += s.step() {
		r := of.ranges[i]
		a, last := of.next, r.To
		if s.descending {
			last = r.From
		}
		if !r.Contains(a) {
			a = r.From
			if s.descending {
				a = r.To
			}
		}
		for ; ; a = s.after(a) {
			if !isEnd(a) && !taken(a) {
				of.next = a
				return a, true
			}
			if a == last {
				break
			}
		}
	}
	of.full = true
	return netip.Addr{}, false
}

// step is where the next range is.
func (s *space) step() int {
	if s.descending {
		return -1
	}
	return 1
}

// after is the address that is searched after a.
func (s *space) after(a netip.Addr) netip.Addr {
	if s.descending {
		return a.Prev()
	}
	return a.Next()
}

// freed records that a, which was taken, is not any more.
func (s *space) freed(a netip.Addr) {
	of := s.family(vip.FamilyOf(a))
	if !contains(of.ranges, a) {
		return
	}
	if of.full || s.before(a, of.next) {
		of.next, of.full = a, false
	}
}

// before reports whether a is searched before b.
func (s *space) before(a, b netip.Addr) bool {
	if s.descending {
		return b.Less(a)
	}
	return a.Less(b)
}

// setHeld records that a Service has a, or that none has it any more.
func (s *space) setHeld(a netip.Addr, held bool) {
	if !s.pool.Contains(a) {
		return
	}
	of, n := s.family(vip.FamilyOf(a)), 1
	if !held {
		n = -1
	}
	of.used += n
	if !isEnd(a) && contains(of.ranges, a) {
		of.given += n
	}
	if !s.share || !a.Is4() {
		return
	}
	switch i, found := slices.BinarySearchFunc(s.held, a, netip.Addr.Compare); {
	case held && !found:
		s.held = slices.Insert(s.held, i, a)
	case !held && found:
		s.held = slices.Delete(s.held, i, i+1)
	}
}
