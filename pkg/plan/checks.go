package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// heardConflictLasts is how long a host heard announcing a VIP counts as claiming it.
	heardConflictLasts = 30 * time.Second
	// defendAfterHeard is how long after that this node asks who claims the VIP.
	defendAfterHeard = 10 * time.Minute
	// moveTime is how long after a move the former owner may still be heard.
	moveTime = 5 * time.Second
	// earlyProbers is how many nodes probe new addresses of a unit that nobody holds.
	earlyProbers = 4
	// heldBackAfter is when a waiting VIP is reported: so long after a fence no kernel answers (quorum.memory.loseClaims).
	heldBackAfter = 2 * vip.KernelAnswers
)

// addressChecks plans the AddressChecks of this node, and reports their results.
type addressChecks struct {
	*draft
	nodeByMAC map[string]string
	nodeMACs  string // the MACs of all nodes, as in vip.AddressCheck
	ownMACs   string // those of this node and of its macvlans
	// nodes whose kernels may answer for VIPs of others; without those that are Gone, for the link of heartbeats
	former, formerHeard formerOnLink
	complete            bool                // every node that is alive publishes its MACs: another MAC is no node's
	added               map[netip.Addr]bool // the addresses in out.AddressChecks
}

type formerOnLink struct {
	nodes, macs []string
	until       time.Time // when the last of these does no longer (Member.AnswersUntil)
	probeMACs   string    // the MACs of all other nodes
}

// newAddressChecks indexes the MACs of all nodes and own macvlans.
func newAddressChecks(p *draft) *addressChecks {
	c := &addressChecks{draft: p, nodeByMAC: make(map[string]string), complete: true, added: make(map[netip.Addr]bool)}
	var all, own []string
	for _, x := range p.Members {
		macs := macsOf(&x.Info)
		if x.Name == p.Self {
			own = slices.Clone(macs)
		} else if p.Now.Before(x.AnswersUntil) && len(macs) > 0 {
			c.former.add(&x, macs)
			if !x.Gone {
				c.formerHeard.add(&x, macs)
			}
		}
		for _, mac := range macs {
			c.nodeByMAC[mac] = x.Name
		}
		all = append(all, macs...)
		if x.Alive && len(macs) == 0 {
			c.complete = false
		}
	}
	for _, x := range p.Macvlans { // their address moves along with the VIP
		c.nodeByMAC[x.MAC] = p.Self
		all, own = append(all, x.MAC), append(own, x.MAC)
	}
	c.nodeMACs, c.ownMACs = strings.Join(all, " "), strings.Join(own, " ")
	for _, f := range []*formerOnLink{&c.former, &c.formerHeard} {
		slices.Sort(f.macs)
		f.probeMACs = strings.Join(slices.DeleteFunc(slices.Clone(all), f.has), " ")
	}
	return c
}

func (f *formerOnLink) add(x *vip.Member, macs []string) {
	f.nodes, f.macs = append(f.nodes, x.Name), append(f.macs, macs...)
	if x.AnswersUntil.After(f.until) {
		f.until = x.AnswersUntil
	}
}

func (f *formerOnLink) has(mac string) bool { return slices.Contains(f.macs, mac) }

func (c *addressChecks) formerOn(link string) *formerOnLink {
	if link == c.self.Info.HeartbeatLink() {
		return &c.formerHeard
	}
	return &c.former
}

func macsOf(info *vip.NodeInfo) []string {
	var macs []string
	for _, l := range info.Links {
		if l.MAC != "" {
			macs = vip.AppendUnique(macs, l.MAC)
		}
	}
	return macs
}

// addCheck plans x, unless its address has a check, and returns the result.
func (c *addressChecks) addCheck(x vip.AddressCheck) (result vip.CheckResult, known bool) {
	if !c.added[x.Addr] {
		c.added[x.Addr] = true
		c.out.AddressChecks = append(c.out.AddressChecks, x)
	}
	return c.result(x)
}

// result returns the last result of the same check as x.
func (c *addressChecks) result(x vip.AddressCheck) (result vip.CheckResult, known bool) {
	if r := c.CheckResults[x.Addr]; r.Same(x) {
		return r, true
	}
	return vip.CheckResult{}, false
}

// probe asks whether new a is free (RFC 5227 section 2.1.1); others are foreign MACs.
func (c *addressChecks) probe(a vip.Address) (free bool, others []string) {
	f, link := c.formerOn(a.Link), linkNamed(&c.self.Info, a.Link)
	r, known := c.addCheck(vip.AddressCheck{Addr: a.Addr, Link: a.Link, Kind: vip.CheckProbe, AllowedMACs: f.probeMACs})
	asked := r.NotSent == "" || len(f.macs) == 0 || link == nil || link.MAC == ""
	if known && r.OK() && asked && !slices.ContainsFunc(f.macs,
		func(mac string) bool { return strings.Contains(r.AllowedMACs, mac) }) {
		return true, nil
	}
	if len(f.macs) > 0 {
		c.replanAfter(f.until.Sub(c.Now))
	}
	return false, slices.DeleteFunc(slices.Clone(r.UnexpectedMACs),
		func(mac string) bool { return c.nodeByMAC[mac] != "" })
}

// askFormerOwners asks former owners, or mac, for a, and reports whether to wait (docs/why.md, "A killed process").
func (c *addressChecks) askFormerOwners(a vip.Address, mac string) bool {
	f := c.formerOn(a.Link)
	if len(f.macs) == 0 {
		return false
	}
	macs := append(slices.Clone(f.macs), mac)
	slices.Sort(macs)
	r, known := c.addCheck(vip.AddressCheck{Addr: a.Addr, Link: a.Link, Kind: vip.CheckFormer,
		AllowedMACs: strings.TrimSpace(strings.Join(macs, " "))})
	if known && r.NoAnswer {
		return false
	}
	c.replanAfter(f.until.Sub(c.Now))
	return true
}

// addHeldBack adds a to s.heldBack, if s has waited long.
func (c *addressChecks) addHeldBack(s *service, a vip.Address) {
	r, f := c.CheckResults[a.Addr], c.formerOn(a.Link)
	mac := r.StillAnsweredBy
	if r.Kind == vip.CheckProbe {
		if c.Now.Sub(s.unit.claim.AcquiredAt) < heldBackAfter {
			return
		}
		if i := slices.IndexFunc(r.UnexpectedMACs, f.has); i >= 0 {
			mac = r.UnexpectedMACs[i]
		}
	}
	nodes := f.nodes
	if node := c.nodeByMAC[mac]; node != "" {
		nodes = []string{node}
	}
	who := "of node " + strings.Join(nodes, " or ")
	switch {
	case r.Link != a.Link || r.Kind != vip.CheckFormer && r.Kind != vip.CheckProbe || mac == "" && r.NotSent == "":
		return
	case mac != "":
		s.heldBack = append(s.heldBack, fmt.Sprintf("%s on %s (MAC %s %s)", a.Addr, a.Link, mac, who))
	default:
		s.heldBack = append(s.heldBack, fmt.Sprintf("%s on %s (a MAC %s, which can't be asked: %s)", a.Addr, a.Link,
			who, r.NotSent))
	}
	s.heldBackBy = nodes
}

// describeHeldBack returns the message about s.heldBack (docs/why.md, "Nobody answers beside a silent node").
func (c *addressChecks) describeHeldBack(s *service) string {
	return fmt.Sprintf("node %s owns it, but waits until nobody else answers for it, for longer than a kernel does whose "+
		"Herald has ended: %s. If node %s runs, it may serve the VIP without the API server: find out why it is not heard "+
		"(herald status). If it does not, something answers in its place (ARP suppression of a switch, a proxy): clear the "+
		"entry there, or, once it is certainly off: kubectl -n %s delete lease herald-node-%s",
		c.Self, strings.Join(s.heldBack, ", "), strings.Join(s.heldBackBy, " or "), c.Announcer,
		strings.Join(s.heldBackBy, " herald-node-"))
}

// probeEarly probes new addresses of u, if it has an owner (unitOfOne), before this node holds it.
func (c *addressChecks) probeEarly(u *unit) {
	if !c.ProbeNew || c.self == nil || u == nil || u.target != c.self && !c.mayBecomeOwner(u) {
		return
	}
	for _, s := range u.services {
		for _, a := range s.addrs {
			if s.bindsAddresses && a.New && !c.isBound(a.Address) && linkFault(&c.self.Info, a.Link) == "" {
				c.probe(a.Address)
			}
		}
	}
}

// mayBecomeOwner reports whether this node is among the first earlyProbers.
func (c *addressChecks) mayBecomeOwner(u *unit) bool {
	before := 0
	for _, n := range c.alive {
		if n.whyExcluded() == "" && (n.units < c.self.units || n.units == c.self.units && rendezvousHash(u.hash,
			n.hash) > rendezvousHash(u.hash, c.self.hash)) {
			before++
		}
	}
	return c.self.whyExcluded() == "" && before < earlyProbers
}

// defend asks who else claims a, once one was heard (RFC 5227 section 2.4).
func (c *addressChecks) defend(s *service, a vip.Address) {
	x := vip.AddressCheck{Addr: a.Addr, Link: a.Link, Kind: vip.CheckDefend, AllowedMACs: c.nodeMACs}
	announced, heard := c.Heard[a.Addr]
	age := c.Now.Sub(announced.At)
	heard = heard && announced.Link == a.Link && c.isForeign(s, announced) && age < defendAfterHeard
	r, known := c.result(x)
	if !heard && (!known || r.OK() && r.ClearedAt.IsZero()) {
		return
	}
	if c.nodeByMAC[announced.MAC] != "" {
		x.AllowedMACs = c.ownMACs
	}
	c.addCheck(x)
	others := r.UnexpectedMACs
	if heard && age < heardConflictLasts && len(others) == 0 { // else they include it, or are proof enough
		others = []string{announced.MAC}
	}
	switch {
	case len(others) == 0 && known:
		since := cmp.Or(r.ClearedAt, announced.At) // a host that was heard may answer no AddressCheck
		c.addEvent(s, vip.VIPAnswered, fmt.Sprintf("no other host on %s claims %s any more", a.Link, a.Addr), since.Unix())
	case len(others) > 0:
		c.setProblem(s, vip.VIPForeignMAC, c.describeConflict(a, others))
	}
}

// isForeign reports whether x announces an own address from elsewhere.
func (c *addressChecks) isForeign(s *service, x vip.HeardAnnouncement) bool {
	claim := &s.unit.claim
	moved := x.At.Sub(claim.AcquiredAt) > moveTime
	if node := c.nodeByMAC[x.MAC]; node != "" {
		return moved && node != c.Self
	}
	// or that of a former holder that stopped, whose MACs are forgotten
	return c.complete && (moved || !slices.ContainsFunc(claim.FormerHolders,
		func(f vip.FormerHolder) bool { return c.members[f.Node] == nil }))
}

// describeConflict returns the message of VIPForeignMAC for hosts that claim a.
func (c *addressChecks) describeConflict(a vip.Address, macs []string) string {
	who, advice := "another host", "take the address off it"
	hosts := slices.Clone(macs)
	for i, mac := range hosts {
		if node := c.nodeByMAC[mac]; node != "" {
			who, advice = "a host", "it is the MAC of a node that does not own the VIP, so the address is bound there "+
				"by hand, or another host forges ARP"
			hosts[i] += " of node " + node
		}
	}
	return fmt.Sprintf("%s on %s claims %s (MAC %s): some clients may reach that host instead; %s. Node %s goes on "+
		"announcing the VIP", who, a.Link, a.Addr, strings.Join(hosts, ", "), advice, c.Self)
}

// verify asks whether the owner of s alone answers (docs/why.md, "Verification").
func (c *addressChecks) verify(s *service) {
	u := s.unit
	owner := c.members[u.claim.Holder]
	if owner == nil || !owner.Alive || s.statusBy != owner.Name || !s.bindsAddresses {
		return
	}
	for _, a := range s.addrs {
		if !s.statusHas(a.Addr) || c.wanted[a.Addr] || !c.isVerifier(s, a.Address, owner) {
			continue
		}
		x := vip.AddressCheck{
			Addr: a.Addr, Link: a.Link, Kind: vip.CheckVerify, Owner: owner.Name,
			Transitions: int64(u.claim.Transitions),
			AllowedMACs: strings.Join(macsOf(&owner.Info), " "),
		}
		if a.client != nil {
			x.AllowedMACs = strings.TrimSpace(x.AllowedMACs + " " + a.client.mac)
		}
		if r, known := c.addCheck(x); known {
			c.reportVerified(s, r)
		}
	}
}

// reportVerified sets a faulty verdict of s, with an Event.
func (c *addressChecks) reportVerified(s *service, r vip.CheckResult) {
	switch {
	case len(r.UnexpectedMACs) > 0:
		var hosts []string
		for _, mac := range r.UnexpectedMACs {
			if node := c.nodeByMAC[mac]; node != "" {
				mac += ", node " + node
			}
			hosts = append(hosts, "MAC "+mac)
		}
		c.setProblem(s, vip.VIPForeignMAC,
			fmt.Sprintf("node %s has asked on %s who has %s: node %s owns it, but somebody else answers (%s)",
				c.Self, r.Link, r.Addr, r.Owner, strings.Join(hosts, "; ")))
	case r.NoAnswer:
		c.setProblem(s, vip.VIPUnanswered,
			fmt.Sprintf("node %s has asked on %s who has %s: node %s owns it, but does not answer; look at that node's "+
				"firewall (ARP, ICMPv6 neighbor solicitations), at its sysctls arp_ignore and arp_filter, and at the network "+
				"between the two", c.Self, r.Link, r.Addr, r.Owner))
	case !r.ClearedAt.IsZero():
		c.addEvent(s, vip.VIPAnswered, fmt.Sprintf("node %s, which owns %s, answers for it again, and nobody else "+
			"does", r.Owner, r.Addr), r.ClearedAt.Unix())
	}
}

// isVerifier reports whether this node is to verify a.
func (c *addressChecks) isVerifier(s *service, a vip.Address, owner *member) bool {
	if c.self == nil || !c.self.Alive || c.self == owner {
		return false
	}
	linkOn := func(n *member) *vip.Link {
		link, _ := linkFor(&n.Info, s.Interface, a.Addr)
		return linkNamed(&n.Info, link)
	}
	ownerLink := linkOn(owner)
	if ownerLink == nil || !sharesNetwork(linkNamed(&c.self.Info, a.Link), ownerLink) {
		return false
	}
	return c.self == chosen(s.unit.hash, c.alive, "", func(n *member) bool {
		return n != owner && n.caresForServices && sharesNetwork(linkOn(n), ownerLink)
	})
}

// sharesNetwork reports whether l, usable, is in a network of other.
func sharesNetwork(l, other *vip.Link) bool {
	if l == nil || !l.Up || l.MAC == "" {
		return false
	}
	return slices.ContainsFunc(l.Networks(), func(p netip.Prefix) bool {
		return slices.ContainsFunc(other.Networks(), func(q netip.Prefix) bool { return p.Masked() == q.Masked() })
	})
}
