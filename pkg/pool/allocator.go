package pool

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Request is what an Allocator knows of a Service of type LoadBalancer.
type Request struct {
	Service    vip.Key
	UID        string
	Created    time.Time
	Labels     map[string]string
	Ports      []vip.Port
	SharingKey string       // Services of a namespace with the same one share addresses
	Families   []vip.Family // spec.ipFamilies
	DualStack  vip.DualStack
	Pools      []string // that it asks for; empty for what is offered to it

	Addresses []netip.Addr // that it has, or names; 0.0.0.0 and :: ask a DHCP server
	Named     []netip.Addr // those of them that are written on it, but for its status
	Own       []netip.Addr // those of Addresses that a person named: they stay, and are of no pool that gave them
	Allocated string       // the pools that they were allocated from, with commas; "" if a person set them
	Shown     []netip.Addr // in its status: clients may use them
	// ShownPorts is in its status, for each of Shown: no Service that has the same address takes one of them by adding it to its own; nil if the status names none.
	ShownPorts []vip.Port
	Manner     Manner
	Lease      string // that it names, which it may share with others; "" for its own
	Renumber   bool   // what it was given is replaced if no pool has it any more (docs/why.md, "Pools")
	Foreign    bool   // it is another implementation's: what it has is in use, and it is given nothing
}

// A Manner is what decides how a Service is announced. Services of two namespaces share an address only if they do not differ in it.
type Manner struct {
	Local            bool         // externalTrafficPolicy; then they never do
	Interface        string       // that the Service names
	Announce         []vip.Method // that the Service names
	BGPAttributes    vip.BGPAttributes
	ClientIPAffinity bool
}

// isOwn reports whether a person named x.
func (r *Request) isOwn(x netip.Addr) bool {
	return slices.Contains(r.Own, x) || r.Allocated == "" && slices.Contains(r.Addresses, x)
}

// written returns what is written on a Service: its addresses, and those that its status shows.
func (r *Request) written() []netip.Addr { return slices.Concat(r.Addresses, r.Shown) }

// An Allocator decides which Service has which addresses. It remembers what it has decided
// until that is seen on the Service, and which addresses were released when. Its methods must
// not be called concurrently.
//
// For n Services Set, Delete and Decide take time that does not grow with n, but for addresses
// that many share, and for Services that wait: Decide tries all of those again when something
// was released.
type Allocator struct {
	rest       time.Duration // how long an address that was released is given only if there is no other
	dhcpMode   string        // as PoolInput has it
	pools      *Pools
	namespaces map[string]map[string]string // labels of namespaces
	reserved   []Range                      // merged

	services map[vip.Key]*service
	holders  map[netip.Addr][]*service // who has, or names, an address
	named    map[netip.Addr]int        // how often it is written on Services, statuses included, be it theirs or not
	keyed    map[sharingKey]map[*service]bool
	spaces   map[*Pool]*space
	offered  map[string][]*Pool // by namespace, as far as it was asked for

	resting   map[netip.Addr]time.Time // since when
	restQueue []rest                   // those of resting, the longest first, and some that are not any more
	occupied  map[netip.Addr]time.Time // that other hosts turned out to have: since when
	contested map[netip.Addr]bool      // to be looked at: a second Service has come to it
	changed   map[*service]bool        // to be looked at
	open      map[*service]bool        // wants more than it has
	pending   map[*service]bool        // was given addresses that are not seen on it yet
	outside   map[*service]bool        // was given addresses that no pool has any more
	freed     bool                     // something may be free that was not when open was looked at
}

// A rest is that of an address; over if resting has another time for it, or none.
type rest struct {
	addr  netip.Addr
	since time.Time
}

// A sharingKey is the key of Services that share addresses.
type sharingKey struct{ namespace, key string }

// A service is what an Allocator knows of a Service.
type service struct {
	Request
	ports  []uint32     // Ports as sortedPorts has them
	shown  []uint32     // those of ports that are in ShownPorts
	has    []netip.Addr // what it holds: what it names, or was given; without 0.0.0.0 and ::
	pools  []string     // with pending: that it was given addresses of
	given  []netip.Addr // with pending: what is to be written on it, 0.0.0.0 and :: included
	reason string       // of the last Assignment
	lost   string       // why an address that is written on it is not its own; "" if none was lost
	moved  int          // how often it was given another address since a host had the one it was given
}

// NewAllocator makes an Allocator without pools. rest may be 0.
func NewAllocator(rest time.Duration) *Allocator {
	a := &Allocator{
		rest:     rest,
		services: make(map[vip.Key]*service), holders: make(map[netip.Addr][]*service), named: make(map[netip.Addr]int),
		keyed:   make(map[sharingKey]map[*service]bool),
		resting: make(map[netip.Addr]time.Time), occupied: make(map[netip.Addr]time.Time), contested: make(map[netip.Addr]bool),
		changed: make(map[*service]bool), open: make(map[*service]bool), pending: make(map[*service]bool), outside: make(map[*service]bool),
	}
	a.SetPools(newPools())
	return a
}

// SetPools replaces the pools. What Services have stays, in a pool or not, unless they may be renumbered; what they were given
// and do not have yet stays if a pool that is offered to them still has it and they do not share it.
func (a *Allocator) SetPools(p *Pools) {
	a.pools = p
	a.resetSpaces()
	for _, s := range a.services {
		switch a.setOutside(s); {
		case !s.Renumber:
		case a.pending[s]:
			a.withdraw(s) // a pool may have again what it was to be given another for
		case a.outside[s]:
			a.changed[s] = true
		}
	}
	a.withdrawIf(func(x netip.Addr) bool { return len(a.holders[x]) > 1 }) // who shares may be another
	a.withdrawUnoffered()
}

// SetNamespaces replaces the labels of namespaces, by name. A namespace that is not there has none.
func (a *Allocator) SetNamespaces(labels map[string]map[string]string) {
	a.namespaces, a.offered, a.freed = labels, make(map[string][]*Pool), true
	a.withdrawUnoffered()
}

// SetReserved replaces the ranges of which no Service is given an address. Those that have one
// keep it, unless it was given to them and is not seen on them yet.
func (a *Allocator) SetReserved(ranges []vip.ReservedRange) {
	list := make([]Range, 0, len(ranges))
	for _, r := range ranges {
		list = append(list, rangeOf(r.Prefix))
	}
	list = merge(list)
	if slices.Equal(list, a.reserved) {
		return
	}
	a.reserved = list
	a.resetSpaces()
	a.withdrawIf(func(x netip.Addr) bool { return contains(list, x) })
}

// resetSpaces makes spaces from the pools and what is reserved, and has Services that want
// more looked at again.
func (a *Allocator) resetSpaces() {
	a.spaces, a.offered, a.freed = make(map[*Pool]*space, len(a.pools.all)), make(map[string][]*Pool), true
	for _, p := range a.pools.all {
		a.spaces[p] = newSpace(p, a.reserved, a.pools)
	}
	for _, x := range slices.SortedFunc(maps.Keys(a.holders), netip.Addr.Compare) {
		a.setHeld(x, true)
	}
}

// Set adds or replaces a Service. What it had and has no more is released at now.
func (a *Allocator) Set(r Request, now time.Time) {
	s := a.services[r.Service]
	if s != nil && s.UID != r.UID {
		a.Delete(r.Service, now)
		s = nil
	}
	if s == nil {
		s = &service{}
		a.services[r.Service] = s
	} else if a.pending[s] && sameWishes(&s.Request, &r) && !s.showsWhatItLoses(&r) {
		a.contest(s, !slices.Equal(s.Shown, r.Shown) || !slices.Equal(s.ShownPorts, r.ShownPorts))
		a.rename(s.Shown, r.Shown)
		s.sortPorts(&r)
		s.Labels, s.Named, s.Shown, s.ShownPorts = r.Labels, r.Named, r.Shown, r.ShownPorts // what it was given stays
		return
	}
	before, contest := s.has, s.SharingKey != r.SharingKey || s.Lease != r.Lease || !slices.Equal(s.Ports, r.Ports) || !slices.Equal(s.Shown, r.Shown) || !slices.Equal(s.ShownPorts, r.ShownPorts) || !s.Manner.equal(&r.Manner)
	a.setKey(s, r.Service.Namespace, r.SharingKey)
	written := s.written()
	s.sortPorts(&r)
	s.Request, s.has, s.lost = r, nil, ""
	delete(a.pending, s)
	for _, x := range r.Addresses {
		if !x.IsUnspecified() && !slices.Contains(s.has, x) {
			s.has = append(s.has, x)
		}
	}
	if slices.ContainsFunc(s.has, func(x netip.Addr) bool { return slices.Contains(s.Shown, x) }) {
		s.moved = 0
	}
	for _, x := range before {
		if !slices.Contains(s.has, x) {
			a.release(s, x, now)
		}
	}
	for _, x := range s.has {
		if !slices.Contains(before, x) {
			a.hold(s, x)
		}
	}
	a.contest(s, contest)
	a.rename(written, r.written())
	a.changed[s] = true
	a.setOutside(s)
}

// sortPorts sets ports and shown to what r says, which is to be the Request of s.
func (s *service) sortPorts(r *Request) {
	samePorts := slices.Equal(s.Ports, r.Ports)
	if !samePorts {
		s.ports = sortedPorts(r.Ports)
	}
	if !samePorts || !slices.Equal(s.ShownPorts, r.ShownPorts) {
		s.shown = without(s.ports, without(s.ports, sortedPorts(r.ShownPorts)))
	}
}

// rename records what is written on a Service in place of what was. What is written on none any more may be given, even while it rests.
func (a *Allocator) rename(before, after []netip.Addr) {
	for _, x := range after {
		a.named[x]++
	}
	for _, x := range before {
		if a.named[x]--; a.named[x] > 0 {
			continue
		}
		delete(a.named, x)
		if len(a.holders[x]) > 0 || x.IsUnspecified() {
			continue
		}
		a.freed = true
		if _, rests := a.resting[x]; !rests {
			a.free(x)
		}
	}
}

// showsWhatItLoses reports whether the status of s shows an address, by now, that s was to be given another for: it keeps that.
func (s *service) showsWhatItLoses(now *Request) bool {
	return slices.ContainsFunc(now.Shown, func(x netip.Addr) bool {
		return slices.Contains(now.Addresses, x) && !slices.Contains(s.given, x) && !slices.Contains(s.Shown, x)
	})
}

// contest has the addresses of s that others have, too, looked at, if s has changed in what decides who keeps them.
func (a *Allocator) contest(s *service, changed bool) {
	for _, x := range s.has {
		if changed && len(a.holders[x]) > 1 {
			a.contested[x] = true
		}
	}
}

// sameWishes reports whether two Requests of one Service differ in labels and status only.
func sameWishes(x, y *Request) bool {
	return x.SharingKey == y.SharingKey && x.DualStack == y.DualStack && x.Allocated == y.Allocated && x.Foreign == y.Foreign && x.Renumber == y.Renumber &&
		slices.Equal(x.Addresses, y.Addresses) && slices.Equal(x.Own, y.Own) && slices.Equal(x.Families, y.Families) && slices.Equal(x.Ports, y.Ports) && slices.Equal(x.Pools, y.Pools) &&
		x.Lease == y.Lease && x.Manner.equal(&y.Manner)
}

// equal reports whether two Manners are the same.
func (m *Manner) equal(o *Manner) bool {
	return m.Local == o.Local && m.Interface == o.Interface && m.ClientIPAffinity == o.ClientIPAffinity &&
		reflect.DeepEqual(m.Announce, o.Announce) && reflect.DeepEqual(m.BGPAttributes, o.BGPAttributes)
}

// Delete forgets a Service, and releases what it had at now.
func (a *Allocator) Delete(k vip.Key, now time.Time) {
	s := a.services[k]
	if s == nil {
		return
	}
	for _, x := range s.has {
		a.release(s, x, now)
	}
	a.rename(s.written(), nil)
	a.setKey(s, k.Namespace, "")
	delete(a.services, k)
	delete(a.changed, s)
	delete(a.open, s)
	delete(a.pending, s)
	delete(a.outside, s)
}

// setKey files s under the sharing key that it is to have; "" for none.
func (a *Allocator) setKey(s *service, namespace, key string) {
	if s.SharingKey != "" {
		old := sharingKey{namespace, s.SharingKey}
		if delete(a.keyed[old], s); len(a.keyed[old]) == 0 {
			delete(a.keyed, old)
		}
	}
	if key != "" {
		k := sharingKey{namespace, key}
		if a.keyed[k] == nil {
			a.keyed[k] = make(map[*service]bool)
		}
		a.keyed[k][s] = true
	}
}

// hold makes s one of those that have x. If it is not the only one, x is contested.
func (a *Allocator) hold(s *service, x netip.Addr) {
	a.holders[x] = append(a.holders[x], s)
	switch len(a.holders[x]) {
	case 1:
		a.setHeld(x, true)
	default:
		a.contested[x] = true
	}
}

// Used is how many addresses of a family of p Services have or name.
func (a *Allocator) Used(p *Pool, f vip.Family) int { return a.spaces[p].family(f).used }

// Free is how many addresses of a family of p are neither reserved nor had or named by a Service.
func (a *Allocator) Free(p *Pool, f vip.Family) (n float64) {
	of := a.spaces[p].family(f)
	for _, r := range of.ranges {
		n += r.size()
	}
	return n - float64(of.given)
}

// setHeld records in all spaces that a Service has x, or that none has it any more.
func (a *Allocator) setHeld(x netip.Addr, held bool) {
	for _, p := range a.pools.all {
		a.spaces[p].setHeld(x, held)
	}
}

// unhold makes s no more one of those that have x.
func (a *Allocator) unhold(s *service, x netip.Addr) {
	left := slices.DeleteFunc(a.holders[x], func(o *service) bool { return o == s })
	if len(left) > 0 {
		a.holders[x] = left
		if len(left) > 1 {
			a.contested[x] = true // which of them ranks first may be another
		}
		a.freed = true // its ports
		return
	}
	delete(a.holders, x)
	delete(a.contested, x)
	a.setHeld(x, false)
}

// release is unhold at a time, from which x rests if nobody else has it.
func (a *Allocator) release(s *service, x netip.Addr, now time.Time) {
	a.unhold(s, x)
	if len(a.holders[x]) > 0 || a.pools.find(x) == nil {
		return
	}
	a.freed = true
	if a.rest == 0 {
		a.free(x)
		return
	}
	a.resting[x] = now
	a.restQueue = append(a.restQueue, rest{x, now})
	if len(a.restQueue) > 16+2*len(a.resting) { // each Service that waits goes through it
		a.restQueue = slices.DeleteFunc(a.restQueue, func(r rest) bool { return !a.rests(r) })
	}
}

// free lets x be found again.
func (a *Allocator) free(x netip.Addr) {
	a.freed = true
	for _, p := range a.pools.all {
		a.spaces[p].freed(x)
	}
}

// endRests frees the addresses that have rested long enough.
func (a *Allocator) endRests(now time.Time) {
	for len(a.restQueue) > 0 {
		x := a.restQueue[0]
		if a.rests(x) {
			if now.Sub(x.since) < a.rest {
				return
			}
			delete(a.resting, x.addr)
			if len(a.holders[x.addr]) == 0 {
				a.free(x.addr)
			}
		}
		a.restQueue = a.restQueue[1:]
	}
}

// rests reports whether a rest goes on.
func (a *Allocator) rests(r rest) bool {
	since, rests := a.resting[r.addr]
	return rests && since.Equal(r.since)
}

// isTaken reports whether x is not to be given to a Service that asks for any address.
func (a *Allocator) isTaken(x netip.Addr) bool {
	if _, rests := a.resting[x]; rests || a.isOccupied(x) {
		return true
	}
	return len(a.holders[x]) > 0 || a.named[x] > 0
}

// byAge orders Services by creationTimestamp, oldest first, and those of the same second by Key.
func byAge(x, y *service) int {
	return cmp.Or(x.Created.Compare(y.Created), x.Service.Compare(y.Service))
}
