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
	families   map[vip.Family]*familySpace
	held       []netip.Addr // IPv4 addresses of the pool that Services have, as compare orders them; nil until heldIn
}

type familySpace struct {
	ranges []vip.Range // what may be given, isEnd included
	left   []vip.Range // of these, in the order of search, those in which one may be free
	rested int         // so many of those that rest can't be given
}

func (p *pass) space(x *Pool) *space {
	if s := p.spaces[x]; s != nil {
		return s
	}
	s := &space{pool: x, descending: p.descending, families: map[vip.Family]*familySpace{vip.IPv4: {}, vip.IPv6: {}}}
	p.spaces[x] = s
	for _, r := range subtract(x.search, p.reserved) {
		of := s.families[vip.FamilyOf(r.From)]
		of.ranges = append(of.ranges, r)
	}
	for _, of := range s.families {
		if of.left = slices.Clone(of.ranges); s.descending {
			slices.Reverse(of.left)
		}
	}
	return s
}

// findFree returns the first address of a family that is not taken, and stays so.
func (s *space) findFree(f vip.Family, taken func(netip.Addr) bool) (a netip.Addr, ok bool) {
	of := s.families[f]
	for len(of.left) > 0 {
		r := &of.left[0]
		if a = r.From; s.descending {
			a = r.To
		}
		switch {
		case !isEnd(a) && !taken(a):
			return a, true
		case r.From == r.To:
			of.left = of.left[1:]
		case s.descending:
			r.To = a.Prev()
		default:
			r.From = a.Next()
		}
	}
	return netip.Addr{}, false
}

// compare orders addresses as they are searched.
func (p *Pools) compare(a, b netip.Addr) int {
	if p.descending {
		return b.Compare(a)
	}
	return a.Compare(b)
}

// heldIn returns the IPv4 addresses of s that Services have, as they are searched.
func (p *pass) heldIn(s *space) []netip.Addr {
	if s.held == nil {
		s.held = make([]netip.Addr, 0, 8)
		for x, holders := range p.holders {
			if len(holders) > 0 && x.Is4() && s.pool.Contains(x) {
				s.held = append(s.held, x)
			}
		}
		slices.SortFunc(s.held, p.compare)
	}
	return s.held
}

// insert returns all, as compare orders them, with a.
func (p *Pools) insert(all []netip.Addr, a netip.Addr) []netip.Addr {
	if i, found := slices.BinarySearchFunc(all, a, p.compare); !found {
		return slices.Insert(all, i, a)
	}
	return all
}

// usage returns how many of x and f Services have or name, and how many are free.
func (p *pass) usage(x *Pool, f vip.Family) (used int, free float64) {
	for _, r := range x.Ranges {
		if vip.FamilyOf(r.From) == f {
			used += len(p.heldBetween(r))
		}
	}
	for _, r := range p.space(x).families[f].ranges {
		free += size(r)
		for _, a := range p.heldBetween(r) {
			if !isEnd(a) {
				free--
			}
		}
	}
	return used, free
}

func (p *pass) heldBetween(r vip.Range) []netip.Addr {
	from, _ := slices.BinarySearchFunc(p.held, r.From, netip.Addr.Compare)
	to, found := slices.BinarySearchFunc(p.held, r.To, netip.Addr.Compare)
	if found {
		to++
	}
	return p.held[from:to]
}
