package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// Heartbeats show who is heard on the link of VIPs. Who is not, as one booted with a dead link, and all on other links,
// are asked by ARP or NDP (vip.CheckNeighbor); who does not answer is published (vip.NodeInfo.Unanswered). A node for
// which two say so gets no VIP there while another is heard, and hands over its own (docs/why.md, "Verification").

const (
	neighborWitnesses = 3
	// neededWitnesses is how many neighborWitnesses must get no answer.
	neededWitnesses = 2
)

// A neighbor is a node, with its address on a network.
type neighbor struct {
	*member
	addr netip.Addr
}

// neighborsOn returns alive nodes, by name, with addresses on a network.
func (all *nodes) neighborsOn(network netip.Prefix) []neighbor {
	var found []neighbor
	for _, n := range all.alive {
		if a := addressOn(&n.Info, network); a.IsValid() {
			found = append(found, neighbor{n, a})
		}
	}
	return found
}

// addressOn returns a node's first address of exactly a network, on an up link, or zero.
func addressOn(info *vip.NodeInfo, network netip.Prefix) netip.Addr {
	for _, l := range info.Links {
		for _, p := range l.Prefixes {
			if l.Up && p.Masked() == network {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

func (n *member) asksFor(o *member) bool {
	return n != o && (n.Info.AnnouncesServices() || !o.Info.AnnouncesServices())
}

// setUnheard sets unheard where neededWitnesses, or all that ask, get no answer.
func (all *nodes) setUnheard() {
	named := map[netip.Addr]int{}
	for _, n := range all.alive {
		for _, a := range n.Info.Unanswered {
			named[a]++
		}
	}
	for _, n := range all.alive {
		for _, l := range n.Info.Links {
			for _, p := range l.Prefixes {
				by, others := named[p.Addr()], 0
				if by == 0 {
					continue
				}
				for _, o := range all.neighborsOn(p.Masked()) {
					if o.asksFor(n) {
						others++
					}
				}
				if by >= min(neededWitnesses, others) {
					n.unheard[l.Name] = true
				}
			}
		}
	}
}

// unheardLink returns the first link that need names on which n is unheard, or "".
func (n *member) unheardLink(need *requirements) string {
	if len(n.unheard) > 0 {
		for link := range need.linksOn(n) {
			if n.unheard[link] {
				return link
			}
		}
	}
	return ""
}

// watchNeighbors asks for other nodes, where no heartbeats show that they are heard.
func (c *addressChecks) watchNeighbors(units []*unit) {
	if c.self == nil || !c.self.Alive {
		return
	}
	used := map[string]bool{}
	for _, u := range units {
		if u.claim.Holder != "" {
			for link := range u.requirements.linksOn(c.self) {
				used[link] = true
			}
		}
	}
	for _, l := range c.self.Info.Links { // in a fixed order
		if !used[l.Name] || !l.Up || l.MAC == "" || len(l.Prefixes) == 0 {
			continue
		}
		all, heartbeats := c.neighborsOn(l.Prefixes[0].Masked()), l.Name == c.self.Info.HeartbeatLink()
		for _, n := range all {
			if n.member != c.self && n.addr != l.Prefixes[0].Addr() && !(heartbeats && n.Heard) && c.isWitness(n, all) {
				c.addCheck(vip.AddressCheck{Addr: n.addr, Link: l.Name, Kind: vip.CheckNeighbor, Owner: n.Name})
			}
		}
	}
}

// isWitness reports whether this node is to ask for n.
func (c *addressChecks) isWitness(n neighbor, all []neighbor) bool {
	own, before := rendezvousHash(n.hash, c.self.hash), 0
	for _, o := range all {
		if o.asksFor(n.member) && rendezvousHash(n.hash, o.hash) > own {
			before++
		}
	}
	return before < neighborWitnesses
}

// reportUnheard adds VIPUnanswered to s where this node is unheard.
func (c *addressChecks) reportUnheard(s *service) {
	link := c.self.unheardLink(&s.unit.requirements)
	if link == "" {
		return
	}
	what := "no other node is better, so it stays"
	if to := s.unit.target; to != nil {
		what = "it is handed to node " + to.Name
	}
	var by []string
	for _, n := range c.alive {
		if slices.ContainsFunc(linkNamed(&c.self.Info, link).Prefixes,
			func(p netip.Prefix) bool { return slices.Contains(n.Info.Unanswered, p.Addr()) }) {
			by = append(by, n.Name)
		}
	}
	c.addEvent(s, vip.VIPUnanswered,
		fmt.Sprintf("node %s owns it, but does not answer %s on its link %s: %s; look at the cable, and at the VLANs "+
			"of the switch's port", c.Self, strings.Join(by, " and "), link, what), 0)
}
