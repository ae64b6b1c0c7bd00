package pool

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// occupiedLasts is how long an address of another host is given to no Service.
	occupiedLasts = 10 * time.Minute
	// mostMoves is how often a Service moves because hosts have its addresses, until one was shown: a host that answers
	// for all does not use up the pools.
	mostMoves = 3
)

// A memory is what one pass tells the next; Services have the rest.
type memory struct {
	rest     time.Duration            // how long a released address is given only if there is no other
	held     []netip.Addr             // what Services had, or were to be given; sorted
	resting  map[netip.Addr]time.Time // what was released, and when
	occupied map[netip.Addr]time.Time // what other hosts turned out to have, and when
	moved    map[string]int           // by UID: how often a Service was given another address for an occupied one
	pending  map[string][]found       // by UID: what a Service was given and does not name yet
}

func newMemory(rest time.Duration) *memory {
	return &memory{
		rest: rest, resting: make(map[netip.Addr]time.Time), occupied: make(map[netip.Addr]time.Time),
		moved: make(map[string]int), pending: make(map[string][]found),
	}
}

func (m *memory) forget(now time.Time) {
	maps.DeleteFunc(m.resting, func(_ netip.Addr, since time.Time) bool { return now.Sub(since) >= m.rest })
	maps.DeleteFunc(m.occupied, func(_ netip.Addr, since time.Time) bool { return now.Sub(since) >= occupiedLasts })
}

// nextFree returns when the next occupied address is free; zero if none is occupied.
func (m *memory) nextFree() (first time.Time) {
	for _, since := range m.occupied {
		if at := since.Add(occupiedLasts); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// A pass decides once, for all Services, which addresses they have.
type pass struct {
	*Pools
	*memory
	in       *vip.PoolInput
	reserved []vip.Range // merged

	holders map[netip.Addr][]*service   // who has an address; none: it is only written on a Service or in its status
	keyed   map[sharingKey][]netip.Addr // what those with the key have, as compare orders them
	spaces  map[*Pool]*space
	offers  map[string][]*Pool // by namespace, as far as it was asked for
	rests   []netip.Addr       // resting, the longest first; nil until it is asked for

	assignments []vip.Assignment
	waits       bool // a Service wants more than there is
	outside     int  // addresses that Services were given and that no pool offered to them has any more
}

// A sharingKey is the key of Services that share addresses.
type sharingKey struct{ namespace, key string }

type service struct {
	*vip.AddressRequest
	names []netip.Addr // that it may use: written on it, or, if it is Foreign or asks a DHCP server, in its status
	shown []netip.Addr // in its status: clients may use them
	own   []netip.Addr // of names: those that a person named, beside which it is given others
	has   []netip.Addr // of names: without 0.0.0.0 and ::, and without what it has lost
	lost  string       // why it has lost some of names, and a semicolon, for a reason to follow
	kept  []netip.Addr // of has: what it is to keep
	found []found      // what it is given besides
	ports []uint32     // Ports as sortedPorts has them, once they are asked for
}

// A found is an address for a Service.
type found struct {
	addr   netip.Addr // 0.0.0.0 and :: ask a DHCP server
	pool   string
	reason string
}

// decide decides for all Services, oldest first; assignments also name who waits. Without Allocate it notes releases.
func decide(pools *Pools, in *vip.PoolInput, reserved []vip.Range, m *memory) *pass {
	p := &pass{
		Pools: pools, memory: m, in: in, reserved: reserved,
		holders: make(map[netip.Addr][]*service, len(in.Requests)), keyed: make(map[sharingKey][]netip.Addr),
		spaces: make(map[*Pool]*space), offers: make(map[string][]*Pool),
	}
	m.forget(in.Now)
	p.findOccupied()
	wanting := p.readServices()
	slices.SortFunc(wanting, byAge)
	for _, s := range wanting {
		p.keepPending(s)
	}
	for _, x := range m.held {
		if len(p.holders[x]) == 0 && m.rest > 0 {
			m.resting[x] = in.Now
		}
	}
	if in.Allocate {
		clear(m.pending)
		for _, s := range wanting {
			p.serve(s)
		}
	}
	m.held = m.held[:0]
	for x, holders := range p.holders {
		if len(holders) > 0 {
			m.held = append(m.held, x)
		}
	}
	slices.SortFunc(m.held, netip.Addr.Compare)
	slices.SortFunc(p.assignments, func(x, y vip.Assignment) int { return x.Service.Compare(y.Service) })
	return p
}

// findOccupied notes given addresses that other hosts have and no status shows.
func (p *pass) findOccupied() {
	if len(p.in.InUse)+len(p.moved) == 0 {
		return
	}
	moved := make(map[string]int)
	for i := range p.in.Requests {
		s := newService(&p.in.Requests[i])
		if slices.ContainsFunc(s.names, func(x netip.Addr) bool { return slices.Contains(s.shown, x) }) {
			continue
		}
		n := p.moved[s.UID]
		for _, x := range p.in.InUse {
			if _, known := p.occupied[x]; !known && n < mostMoves && slices.Contains(s.names, x) && s.isUnused(x) {
				p.occupied[x] = p.in.Now
				n++
			}
		}
		if n > 0 {
			moved[s.UID] = n
		}
	}
	p.moved = moved
}

// isUnused reports whether x, one of names, was given to s and no client can use it yet.
func (s *service) isUnused(x netip.Addr) bool {
	return s.Allocated != "" && !s.isOwn(x) && !s.Foreign && !slices.Contains(s.shown, x)
}

func (s *service) isOwn(x netip.Addr) bool {
	return slices.Contains(s.own, x) || s.Allocated == "" && slices.Contains(s.names, x)
}

// newService returns what a request says, not yet compared with others.
func newService(q *vip.AddressRequest) *service {
	s := &service{AddressRequest: q, shown: q.StatusVIPs(), names: q.Addresses, own: q.Own}
	if q.Allocated == "" && q.Source != vip.SourceStatus && len(q.Lacks()) > 0 {
		s.own = q.Addresses
	}
	if q.Refused {
		s.names = nil
	}
	if q.Foreign || s.asksDHCP() {
		s.names = slices.Concat(s.names, s.shown)
	}
	return s
}

func (s *service) asksDHCP() bool { return slices.ContainsFunc(s.names, netip.Addr.IsUnspecified) }

// readServices enters all Services into holders and keyed, and returns who wants something.
func (p *pass) readServices() (wanting []*service) {
	for i := range p.in.Requests {
		s := newService(&p.in.Requests[i])
		for _, x := range s.names {
			switch why, lost := p.whyLost(s, x); {
			case x.IsUnspecified() || slices.Contains(s.has, x):
			case !lost:
				s.has = append(s.has, x)
				p.holders[x] = append(p.holders[x], s)
			case why != "":
				s.lost = why + "; "
				p.takeUp(x)
			}
			if p.isOutside(s, x) {
				p.outside++
			}
		}
		for _, x := range s.shown {
			p.takeUp(x)
		}
		if p.wants(s) {
			wanting = append(wanting, s)
		}
		if k := (sharingKey{s.Key.Namespace, s.SharingKey}); k.key != "" {
			p.keyed[k] = append(p.keyed[k], s.has...)
		}
	}
	for k, all := range p.keyed {
		slices.SortFunc(all, p.compare)
		p.keyed[k] = slices.Compact(all)
	}
	return wanting
}

// takeUp has x be given to nobody, though none may have it.
func (p *pass) takeUp(x netip.Addr) { p.holders[x] = slices.Clip(p.holders[x]) }

// whyLost reports whether s may not have x any more, and why; "" if x is nobody's.
func (p *pass) whyLost(s *service, x netip.Addr) (why string, lost bool) {
	for _, l := range s.Lost {
		if l.Addr == x {
			return l.Why, true
		}
	}
	if _, occupied := p.occupied[x]; occupied && s.isUnused(x) {
		return fmt.Sprintf("%s is in use by another host", x), true
	}
	return "", false
}

// isOutside reports whether x was given to s of a pool, and none that is offered to it has it any more.
func (p *pass) isOutside(s *service, x netip.Addr) bool {
	return s.Allocated != "" && !s.isOwn(x) && !s.Foreign && (x.IsUnspecified() || !s.asksDHCP()) &&
		!p.InPool(s.Key.Namespace, p.in.Source.Namespaces[s.Key.Namespace], x, s.Allocated)
}

// wants sets kept, and reports whether s is to have something else than it names.
func (p *pass) wants(s *service) bool {
	if s.Foreign || s.Allocated == "" && len(s.names) > 0 && len(s.own) == 0 {
		return false
	}
	if i := slices.IndexFunc(s.names, netip.Addr.IsUnspecified); i >= 0 && !p.asksForAnotherPool(s, s.names[i]) &&
		!(s.Renumber && p.isOutside(s, s.names[i])) {
		return false
	}
	for _, x := range s.has {
		if p.keeps(s, x) {
			s.kept = append(s.kept, x)
		}
	}
	return !s.isContent(s.kept) || s.lacks(s.kept) != nil
}

func (p *pass) keeps(s *service, x netip.Addr) bool {
	switch {
	case s.isOwn(x) && len(s.own) > 0:
		return true
	case s.asksDHCP(), len(s.Families) > 0 && !slices.Contains(s.Families, vip.FamilyOf(x)):
		return false
	}
	return !p.asksForAnotherPool(s, x) && !(s.Renumber && p.isOutside(s, x))
}

// isContent reports whether nothing is to be written on s that is to have all.
func (s *service) isContent(all []netip.Addr) bool {
	missing := func(x netip.Addr) bool { return !slices.Contains(s.names, x) }
	return len(all) == len(s.names) && !slices.ContainsFunc(all, missing) && s.Allocated != "" && s.isOfPools()
}

// keepPending has s keep what the last pass gave it, if it still may.
func (p *pass) keepPending(s *service) {
	pools, _ := p.candidates(s)
	lacks := s.lacks(s.kept)
	for _, f := range p.pending[s.UID] {
		wanted := slices.ContainsFunc(lacks, func(l []vip.Family) bool { return slices.Contains(l, vip.FamilyOf(f.addr)) })
		holders, used := p.holders[f.addr]
		mayHave := !used || (len(holders) > 0 || slices.Contains(s.shown, f.addr)) && p.mayJoin(s, f.addr)
		if wanted && mayHave && !p.isBarred(f.addr) && firstWith(pools, f.addr) != nil {
			s.found = append(s.found, f)
			p.hold(s, f.addr)
		}
	}
}

func (p *pass) hold(s *service, x netip.Addr) {
	p.holders[x] = append(p.holders[x], s)
	if k := (sharingKey{s.Key.Namespace, s.SharingKey}); k.key != "" {
		p.keyed[k] = p.insert(p.keyed[k], x)
	}
	for _, space := range p.spaces {
		if space.held != nil && x.Is4() && space.pool.Contains(x) {
			space.held = p.insert(space.held, x)
		}
	}
}

func (p *pass) serve(s *service) {
	before := len(s.found)
	pools, problem := p.candidates(s)
	missing := p.choose(s, pools)
	if len(missing) > 0 {
		p.waits = true
		lostOne := slices.ContainsFunc(s.names,
			func(x netip.Addr) bool { return !x.IsUnspecified() && !slices.Contains(s.has, x) })
		if s.DualStack == vip.RequireDualStack || len(s.kept)+len(s.found) == 0 || lostOne {
			for _, f := range s.found[:before] {
				p.holders[f.addr] = slices.DeleteFunc(p.holders[f.addr], func(o *service) bool { return o == s })
			}
			p.wait(s, pools, s.lost+s.whyMissing(missing, pools, problem))
			return
		}
	}
	for i, f := range s.found {
		if i >= before && !f.addr.IsUnspecified() {
			p.hold(s, f.addr)
		}
	}
	p.give(s)
}

// wait has s keep what is written on it, and told why it gets nothing.
func (p *pass) wait(s *service, pools []*Pool, reason string) {
	a := vip.Assignment{Service: s.Key, UID: s.UID, Reason: reason}
	if len(pools) > 0 {
		a.Pool = pools[0].Name
	}
	p.assignments = append(p.assignments, a)
}

func byAge(x, y *service) int { return vip.CompareAge(x.Service, y.Service) }
