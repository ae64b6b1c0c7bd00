package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// renewFormerOwners is how often a Plan with FormerOwners is made at least, so that the kernel
// does not forget them (nft.Timeout).
const renewFormerOwners = time.Minute

// wantFormerOwners adds to the Plan where packets of connections of u go that this node does
// not know: to the latest of the nodes that held u before this one. It does so on the node that
// holds u, and on those that held it, so that each asks the one before it; a node that held u
// more than once is asked for all its connections at once. It leaves out VIPs whose packets end
// in a process of the node, or that are leased by DHCP, whose MAC address moves with them.
func (p *pass) wantFormerOwners(u *unit) {
	if p.KeepConnections == 0 || u.claim.Foreign || p.self == nil {
		return
	}
	former := u.claim.FormerHolders
	if u.claim.Holder != p.Self {
		i := slices.IndexFunc(former, func(f vip.FormerHolder) bool { return f.Node == p.Self })
		if i < 0 {
			return
		}
		former = former[i+1:]
	}
	for _, s := range u.services {
		for _, a := range s.addrs {
			if !s.bindsAddresses || s.localDelivery || a.client != nil {
				continue
			}
			hop, until := p.formerOwner(s, a.Address, former)
			x := vip.FormerOwner{Addr: a.Addr, Link: a.Link, NextHop: hop}
			if hop.IsValid() && !slices.Contains(p.out.FormerOwners, x) {
				p.out.FormerOwners = append(p.out.FormerOwners, x)
				p.replanAfter(min(renewFormerOwners, until.Sub(p.Now)))
			}
		}
	}
}

// formerOwner returns the address of the first of former that may still know connections of a,
// on the link of a there, and until when it is asked; zero if there is none.
func (p *pass) formerOwner(s *service, a vip.Address, former []vip.FormerHolder) (hop netip.Addr, until time.Time) {
	for _, f := range former {
		// The time is of another clock, and of a lease that a tenant may write.
		until := f.Until.Add(p.KeepConnections)
		if !p.Now.Before(until) || until.Sub(p.Now) > p.KeepConnections+time.Minute {
			continue
		}
		if hop := p.nextHop(s, a, f.Node); hop.IsValid() {
			return hop, until
		}
	}
	return netip.Addr{}, time.Time{}
}

// nextHop returns an address of a node, of the family of a, on the link that a would have
// there; zero if none is known, or the node is gone, by heartbeats or by Kubernetes: it has lost
// its connections. A node whose Herald has just ended has no node lease: that is its address
// by Kubernetes, if it is of a subnet of this node's link of a.
func (p *pass) nextHop(s *service, a vip.Address, node string) netip.Addr {
	n := p.members[node]
	i := slices.IndexFunc(p.Nodes, func(o vip.Node) bool { return o.Name == node })
	if n != nil && n.Gone || (n == nil || !n.Alive) && i >= 0 && p.Nodes[i].NotReady {
		return netip.Addr{}
	}
	if n != nil {
		link, _ := linkFor(&n.Info, s.Interface, a.Addr)
		for _, own := range n.Info.OwnAddresses(link) {
			if link != "" && own.Is4() == a.Addr.Is4() {
				return own
			}
		}
		return netip.Addr{}
	}
	own := linkNamed(&p.self.Info, a.Link)
	if i < 0 || own == nil {
		return netip.Addr{}
	}
	for _, addr := range p.Nodes[i].Addresses {
		if slices.ContainsFunc(own.Prefixes, func(x netip.Prefix) bool { return x.Contains(addr) && addr.Is4() == a.Addr.Is4() }) {
			return addr
		}
	}
	return netip.Addr{}
}
