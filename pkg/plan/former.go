package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// lookAtTables is how often nftables and policy routes are renewed: others remove them (nft.Timeout).
const lookAtTables = 5 * time.Second

// settleTime is how long packets may still come to a former owner.
const settleTime = 10 * time.Second

// A formerOwners plans where packets go whose connections began on former owners.
type formerOwners struct {
	*draft
	planned map[binding]bool       // what has an entry in the Plan
	kernel  map[binding]netip.Addr // the next hops that nftables has
}

// newFormerOwners indexes what nftables has.
func newFormerOwners(p *draft) *formerOwners {
	f := &formerOwners{draft: p, planned: make(map[binding]bool), kernel: make(map[binding]netip.Addr,
		len(p.FormerOwners))}
	for _, x := range p.FormerOwners {
		f.kernel[binding{x.Addr, x.Link}] = x.NextHop
	}
	return f
}

// plan adds next hops for connections to u begun on former owners.
func (f *formerOwners) plan(u *unit) {
	if f.KeepConnections == 0 || u.claim.Foreign || f.self == nil {
		return
	}
	former, ownedBefore := u.claim.FormerHolders, false
	i := slices.IndexFunc(former, func(h vip.FormerHolder) bool { return h.Node == f.Self })
	var past []vip.FormerHolder // whom this node asks after a ring
	switch {
	case u.claim.Holder != f.Self && i < 0:
		return
	case u.claim.Holder != f.Self:
		ownedBefore = f.keeps(former[i]) > 0
		former = f.holdersToAsk(u, i)
	case i >= 0:
		past = former[i+1:]
	}
	for _, s := range u.services {
		for _, a := range s.addrs {
			if !s.bindsAddresses {
				a.Link = arrivalLink(&f.self.Info, s, a.Addr)
			}
			b := binding{a.Addr, a.Link}
			// what is leased has its MAC with it
			if !s.bindsAddresses && !s.ownerAdvertises || a.client != nil || f.planned[b] {
				continue
			}
			f.planned[b] = true
			ports := []uint16{0}
			if s.localDelivery {
				ports[0] = s.Ports[0].Port
				f.translate(a.Address, ports[0], ownedBefore || u.claim.Holder == f.Self)
				if c := f.ControlPlane; c != nil && c.BalancedPort != 0 && c.BalancedPort != ports[0] {
					ports = append(ports, c.BalancedPort)
				}
			}
			if hop, left := f.nextHop(u, s, a.Address, former); hop.IsValid() {
				again, _ := f.nextHop(u, s, a.Address, past)
				for _, port := range ports {
					f.out.FormerOwners = append(f.out.FormerOwners, vip.FormerOwner{Addr: a.Addr, Link: a.Link,
						Port: port, NextHop: hop, Again: again})
				}
				f.replanAfter(min(lookAtTables, left))
			}
		}
	}
}

// holdersToAsk returns whom the i-th former holder asks: those before, then the holder.
func (f *formerOwners) holdersToAsk(u *unit, i int) []vip.FormerHolder {
	former := u.claim.FormerHolders
	isHolder := func(h vip.FormerHolder) bool { return h.Node == u.claim.Holder }
	all := slices.DeleteFunc(slices.Clone(former[i+1:]), isHolder)
	// a ring, so for settleTime only
	if held := slices.IndexFunc(former, isHolder); held >= 0 {
		all = append(all, former[held])
	}
	return all
}

// translate adds, if wanted, that a port of a goes to this node.
func (f *formerOwners) translate(a vip.Address, port uint16, wanted bool) {
	own := f.self.Info.OwnAddresses(a.Link)
	if i := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Addr.Is4() }); wanted && a.Link != "" &&
		i >= 0 {
		f.out.Translations = append(f.out.Translations, vip.Translation{Addr: a.Addr, Port: port, To: own[i]})
		f.replanAfter(lookAtTables)
	}
}

// keeps returns how long connections of a former holder are kept, or longer by a clock that was ahead.
func (f *formerOwners) keeps(h vip.FormerHolder) time.Duration {
	return max(0, h.Until.Add(f.KeepConnections).Sub(f.Now))
}

// nextHop returns the first former holder's address, and how long to ask.
func (f *formerOwners) nextHop(u *unit, s *service, a vip.Address, former []vip.FormerHolder) (hop netip.Addr,
	left time.Duration) {
	for _, h := range former {
		if left = f.keeps(h); left == 0 {
			continue
		}
		if h.Node == u.claim.Holder { // see holdersToAsk
			if left = settleTime - f.Now.Sub(u.claim.FormerHolders[0].Until).Abs(); h.Node == f.Self || left <= 0 {
				continue
			}
		}
		if hop = f.addressOn(s, a, h.Node); hop.IsValid() {
			return hop, left
		}
	}
	return netip.Addr{}, 0
}

// arrivalLink returns the link by which routers send to a, which has none, or "".
func arrivalLink(info *vip.NodeInfo, s *service, a netip.Addr) string {
	hasNetwork := func(l vip.Link) bool {
		return slices.ContainsFunc(l.Networks(), func(x netip.Prefix) bool {
			return x.Addr().Is4() == a.Is4() && !x.Addr().IsLoopback()
		})
	}
	link, _ := linkFor(info, s.Interface, a)
	if l := linkNamed(info, link); l != nil && hasNetwork(*l) {
		return link
	}
	if i := slices.IndexFunc(info.Links, hasNetwork); i >= 0 {
		return info.Links[i].Name
	}
	return ""
}

// addressOn returns a node's address beside a, if it may know connections.
func (f *formerOwners) addressOn(s *service, a vip.Address, node string) netip.Addr {
	n := f.members[node]
	i := slices.IndexFunc(f.Nodes, func(o vip.Node) bool { return o.Name == node })
	if n != nil && n.Gone || (n == nil || !n.Alive) && i >= 0 && f.Nodes[i].NotReady {
		return netip.Addr{}
	}
	own := linkNamed(&f.self.Info, a.Link)
	near := func(x netip.Addr) bool {
		return x.Is4() == a.Addr.Is4() && own != nil && slices.ContainsFunc(own.Networks(),
			func(p netip.Prefix) bool { return p.Contains(x) })
	}
	if n != nil {
		link, _ := linkFor(&n.Info, s.Interface, a.Addr)
		if !s.bindsAddresses {
			link = arrivalLink(&n.Info, s, a.Addr)
		}
		for _, x := range n.Info.OwnAddresses(link) {
			if link != "" && near(x) {
				return x
			}
		}
		return netip.Addr{}
	}
	if i < 0 && f.self.labelsKnown { // its Node was deleted
		return netip.Addr{}
	}
	if i >= 0 {
		for _, x := range f.Nodes[i].Addresses {
			if near(x) {
				return x
			}
		}
	}
	return f.kernel[binding{a.Addr, a.Link}]
}
