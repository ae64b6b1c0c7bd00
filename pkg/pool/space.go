package pool

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A space is where a pass looks for a pool's next free address.
type space struct {
	pool       *Pool
	descending bool
	families   [2]familySpace // IPv4, IPv6
	held       []netip.Addr   // IPv4 addresses of the pool that Services have, sorted; nil until heldIn is asked for them
}

type familySpace struct {
	ranges []Range    // what may be given, isEnd included
	next   netip.Addr // of ranges; none before it, in the order of search, is free
	full   bool       // none at all is free
	rested int        // so many of those that rest can't be given
}

func (p *pass) space(x *Pool) *space {
	if s := p.spaces[x]; s != nil {
		return s
	}
	s := &space{pool: x, descending: p.descending}
	p.spaces[x] = s
	for _, r := range subtract(x.search, p.reserved) {
		of := s.family(vip.FamilyOf(r.From))
		of.ranges = append(of.ranges, r)
	}
	for i := range s.families {
		of := &s.families[i]
		switch n := len(of.ranges); {
		case n == 0:
			of.full = true
		case s.descending:
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

// findFree returns the first address of a family that is not taken, and stays so.
func (s *space) findFree(f vip.Family, taken func(netip.Addr) bool) (netip.Addr, bool) {
	of := s.family(f)
	if of.full {
		return netip.Addr{}, false
	}
	i, _ := indexOf(of.ranges, of.next)
	for ; i >= 0 && i < len(of.ranges); i += s.step() {
		first, last := of.ranges[i].From, of.ranges[i].To
		if s.descending {
			first, last = last, first
		}
		a := of.next
		if !of.ranges[i].Contains(a) {
			a = first
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

// before reports whether a is searched before b.
func (s *space) before(a, b netip.Addr) bool {
	if s.descending {
		return b.Less(a)
	}
	return a.Less(b)
}

// heldIn returns the IPv4 addresses of s that Services have, sorted.
func (p *pass) heldIn(s *space) []netip.Addr {
	if s.held == nil {
		s.held = make([]netip.Addr, 0, 8)
		for x, holders := range p.holders {
			if len(holders) > 0 && x.Is4() && s.pool.Contains(x) {
				s.held = append(s.held, x)
			}
		}
		slices.SortFunc(s.held, netip.Addr.Compare)
	}
	return s.held
}

func (s *space) setHeld(a netip.Addr) {
	if s.held == nil || !a.Is4() || !s.pool.Contains(a) {
		return
	}
	if i, found := slices.BinarySearchFunc(s.held, a, netip.Addr.Compare); !found {
		s.held = slices.Insert(s.held, i, a)
	}
}

// usage returns how many of x and f Services have or name, and how many are free.
func (p *pass) usage(x *Pool, f vip.Family) (used int, free float64) {
	for _, r := range x.Ranges {
		if vip.FamilyOf(r.From) == f {
			used += len(p.heldBetween(r))
		}
	}
	for _, r := range p.space(x).family(f).ranges {
		free += r.size()
		for _, a := range p.heldBetween(r) {
			if !isEnd(a) {
				free--
			}
		}
	}
	return used, free
}

func (p *pass) heldBetween(r Range) []netip.Addr {
	from, _ := slices.BinarySearchFunc(p.held, r.From, netip.Addr.Compare)
	to, found := slices.BinarySearchFunc(p.held, r.To, netip.Addr.Compare)
	if found {
		to++
	}
	return p.held[from:to]
}
