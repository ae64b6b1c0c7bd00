package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// has reports whether s has a by its status or else lease: users write neither.
func (p *facts) has(s *service, a netip.Addr) bool {
	return s.statusHas(a) || !s.statusTellsUse && p.leaseHeld(s)
}

func (s *service) statusHas(a netip.Addr) bool {
	return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool {
		// one of mode Proxy may be a gateway's (UPnP)
		return i.Addr == a && (i.IPMode != vip.ModeProxy || s.Record.Has(a))
	})
}

// leaseHeld reports whether a node has the lease of s; users may write another announcer's.
func (p *facts) leaseHeld(s *service) bool {
	return isHeld(p.Claims[s.lease]) && !p.Claims[s.lease].Foreign
}

func isHeld(c vip.Claim) bool { return c.Valid && c.Holder != "" }

type addressOf struct {
	*service
	addr netip.Addr
}

// dropConflicts takes from accepted Services what others have (docs/why.md, "Who has an address").
func (f *admission) dropConflicts() {
	refused, waiting := make(map[addressOf]string), f.waitingHolders()
	j := judging{f, refused, make(portOwners), make(portOwners)}
	for a, services := range f.askedByMany(waiting) {
		j.judge(a, services, waiting[a])
		for _, s := range slices.Concat(services, waiting[a]) {
			j.ports.set(s.Ports, nil)
		}
	}
	if len(refused) == 0 {
		return
	}
	for _, s := range f.accepted {
		var dropped reasons
		s.addrs = slices.DeleteFunc(s.addrs, func(a address) bool {
			why := refused[addressOf{s, a.Addr}]
			if why != "" {
				dropped.add(a.Addr.String(), why)
				s.lost = append(s.lost, vip.LostAddress{Addr: a.Addr, Why: a.Addr.String() + ": " + why})
			}
			return why != ""
		})
		declines := s.client != nil && slices.ContainsFunc(s.dhcpFamilies,
			func(x vip.Family) bool { return s.client.declined[x] != "" })
		switch message := strings.Join(dropped.texts(), "; "); {
		case len(dropped) == 0:
		case len(s.addrs) == 0 && !declines:
			f.reject(s, vip.AddressConflict, message)
		default:
			f.addEventIfResponsible(s, vip.AddressConflict, message)
		}
	}
}

// reasons are why something is not to be, each with what it is true of, in order.
type reasons []sharedReason

type sharedReason struct {
	names []string
	why   string
}

func (r *reasons) add(name, why string) {
	i := slices.IndexFunc(*r, func(x sharedReason) bool { return x.why == why })
	if i < 0 {
		i = len(*r)
		*r = append(*r, sharedReason{why: why})
	}
	(*r)[i].names = append((*r)[i].names, name)
}

// texts has each reason once, after what it is true of.
func (r reasons) texts() (all []string) {
	for _, x := range r {
		all = append(all, strings.Join(x.names, ", ")+": "+x.why)
	}
	return all
}

// askedByMany returns accepted Services, oldest first, by address that several ask for, or one beside waiting.
func (f *admission) askedByMany(waiting map[netip.Addr][]*service) map[netip.Addr][]*service {
	all := make(map[netip.Addr][]*service, len(f.accepted))
	for _, s := range f.accepted {
		for _, a := range s.addrs {
			all[a.Addr] = append(all[a.Addr], s)
		}
	}
	maps.DeleteFunc(all, func(a netip.Addr, services []*service) bool { return len(services) == 1 && waiting[a] == nil })
	return all
}

// waitingHolders returns LoadBalancers by status addresses that they may not have.
func (f *admission) waitingHolders() map[netip.Addr][]*service {
	all := make(map[netip.Addr][]*service)
	for _, s := range f.all {
		// until the status is cleared kube-proxy sends them its packets
		if !s.LoadBalancer || !s.hasVerdict() && !slices.ContainsFunc(s.Ingress,
			func(i vip.Ingress) bool { return !s.hasAddress(i.Addr) }) {
			continue
		}
		for _, a := range s.StatusVIPs() {
			if s.waitsFor(a) {
				all[a] = append(all[a], s)
			}
		}
	}
	return all
}

func (s *service) waitsFor(a netip.Addr) bool { return s.hasVerdict() || !s.hasAddress(a) }

// runs are Services in order, those of one namespace that follow each other in one list: there may be thousands.
type runs [][]*service

func (r runs) with(services ...*service) runs {
	for _, s := range services {
		if n := len(r); n == 0 || r[n-1][0].Key.Namespace != s.Key.Namespace {
			r = append(r, nil)
		}
		r[len(r)-1] = append(r[len(r)-1], s)
	}
	return r
}

// A judging decides which of several Services may have an address.
type judging struct {
	*admission
	refused   map[addressOf]string
	ports     portOwners // of the address in question
	specified portOwners // of any that specs name, for setPortsInStatus
}

// judge adds to refused which of services may not have a.
func (f *judging) judge(a netip.Addr, services, waiting []*service) {
	for _, o := range waiting {
		if o.notOurs { // another class's, announced by another program
			f.ports.set(o.Ports, o)
		}
	}
	f.sortFirstCome(a, services)
	f.setPortsInStatus(a, services)
	holders, beside := make([]*service, 0, len(services)), runs{}.with(waiting...)
	for _, s := range services {
		s.shares = s.shares || len(services) > 1
		why := f.judgeBeside(s, a, beside)
		if why == "" && len(holders) > 0 {
			why = leaseConflict(s, holders[0], a)
		}
		if why == "" {
			why = f.portConflict(s, a)
		}
		if why != "" {
			f.refused[addressOf{s, a}] = why
			continue
		}
		holders, beside = append(holders, s), beside.with(s)
		f.ports.set(s.Ports, s)
	}
	several := severalNamespaces(holders)
	for _, s := range holders { // whoever may write Leases in a namespace stops nothing in another
		s.apart = s.apart || several && s.leaseFollows && f.Claims[s.lease].Foreign
	}
	f.decline(a, services, holders)
}

// decline has DHCP clients ask for another address, if no holder is theirs.
func (f *judging) decline(a netip.Addr, services, holders []*service) {
	for _, s := range services {
		c, why := s.clientOf(a), f.refused[addressOf{s, a}]
		if c != nil && why != "" && !slices.ContainsFunc(holders, func(o *service) bool { return o.clientOf(a) == c }) {
			c.declined[vip.FamilyOf(a)] = a.String() + ": " + why
		}
	}
}

// sortFirstCome sorts services, oldest first, by who has a, or its lease.
func (p *facts) sortFirstCome(a netip.Addr, services []*service) {
	all, place := runs{}.with(services...), make(map[*service]int, len(services))
	for _, s := range services {
		switch {
		case p.has(s, a) && !slices.ContainsFunc(all, func(run []*service) bool {
			return run[0].Key.Namespace != s.Key.Namespace &&
				slices.ContainsFunc(run, func(o *service) bool { return s.whyNotBeside(o) != "" })
		}):
		case p.has(s, a):
			place[s] = 1
		case p.leaseHeld(s):
			place[s] = 2
		default:
			place[s] = 3
		}
	}
	slices.SortStableFunc(services, func(x, y *service) int { return cmp.Compare(place[x], place[y]) })
}

// setPortsInStatus stores the ports in statuses: later ones take none.
func (f *judging) setPortsInStatus(a netip.Addr, services []*service) {
	for _, s := range services {
		for _, i := range s.Ingress {
			if i.Addr != a || len(i.Ports) == 0 {
				continue
			}
			f.specified.set(s.Ports, s)
			for _, p := range i.Ports {
				if by := f.ports.of(p); (by == nil || by.notOurs) && f.specified.of(p) == s {
					f.ports.set([]vip.Port{p}, s)
				}
			}
		}
	}
}

// judgeBeside returns why s may not have a beside those of other namespaces who have or await it, or "".
func (f *judging) judgeBeside(s *service, a netip.Addr, beside runs) string {
	const inUse = "in use by a Service of another namespace"
	if s.reserved {
		return ""
	}
	for _, run := range beside {
		for _, o := range run {
			if o.Key.Namespace == s.Key.Namespace {
				break
			}
			why := s.whyNotBeside(o)
			if !s.statusHas(a) {
				why = f.whyNotShared(s, o, a)
			}
			switch { // without advice, if its user did not choose it
			case why == "", s.statusHas(a) && o.waitsFor(a):
				continue
			case s.clientOf(a) != nil:
				why = leasedText + ", but " + inUse
			case s.IsGiven(a):
				why = inUse
			default:
				why = inUse + why
			}
			o.contended = o.contended || o.hasAddress(a)
			return why
		}
	}
	return ""
}

// whyNotShared returns why s may not begin to share a, or "".
func (f *judging) whyNotShared(s, o *service, a netip.Addr) string {
	byKey := s.SharingKey != "" && s.SharingKey == o.SharingKey
	byPool := f.offers != nil && f.offers.policy.MayShare(a, s.Key.Namespace, o.Key.Namespace)
	if !byKey && !byPool || o.notOurs {
		return "; ask for another address, or agree with its user on a value of the annotation " +
			"heraldvip.io/sharing-key for both"
	}
	if s.Interface != o.Interface {
		return ", whose pools have another link (pool-<name>.interface)"
	}
	return cmp.Or(s.whyNotBeside(o), o.whyNotBeside(s))
}

// whyNotBeside returns why s can't share with o of another namespace, to end a sentence, or "".
func (s *service) whyNotBeside(o *service) string {
	switch what := s.Peculiar(); {
	case what != "":
		return ", which is shared only if neither has " + what
	case s.ownLink:
		return ", which is shared only if neither has kube-vip.io/serviceInterface"
	case len(s.dhcpFamilies) > 0, slices.ContainsFunc(s.addrs, func(a address) bool { return !o.hasAddress(a.Addr) }):
		return ", which is shared only if neither asks for another address beside it"
	}
	return ""
}

// nameFor names s to o's user: another namespace's only as such.
func (s *service) nameFor(o *service) string {
	if s.Key.Namespace == o.Key.Namespace {
		return "Service " + s.Key.String()
	}
	return "a Service of another namespace"
}

// leaseConflict returns why leased a is not for both, or "".
func leaseConflict(s, first *service, a netip.Addr) string {
	switch client, had := s.clientOf(a), first.clientOf(a); {
	case client == had:
		return ""
	case client != nil:
		return leasedText + ", but it belongs to " + first.nameFor(s) + ", which had it first"
	}
	return "it belongs to " + first.nameFor(s) + ", which had it first, and is leased by DHCP"
}

// clientOf returns the client of s to which a is leased, or nil.
func (s *service) clientOf(a netip.Addr) *dhcpClient {
	if i := slices.IndexFunc(s.addrs, func(x address) bool { return x.Addr == a }); i >= 0 {
		return s.addrs[i].client
	}
	return nil
}

func (f *judging) portConflict(s *service, a netip.Addr) string {
	for _, p := range s.Ports {
		if by := f.ports.of(p); by != nil && by != s && !(by.notOurs && s.statusHas(a)) {
			return fmt.Sprintf("port %d/%s belongs to %s, which had it first", p.Port, p.Protocol, by.nameFor(s))
		}
	}
	return ""
}
