package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// echo is how long a claim by another host that was heard counts as one, even if
	// that host answers no question.
	echo = 30 * time.Second
	// recall is how long after such a claim this node asks whether anybody makes it.
	recall = 10 * time.Minute
	// hope is how long a new Service is expected to get its first endpoint.
	hope = 30 * time.Second
	// askers is how many nodes ask ahead for the addresses of such a Service.
	askers = 4
)

// A wire is what the plan knows of who is who on the links.
type wire struct {
	nodes map[string]string // by MAC
	all   string            // the MACs of all nodes, as in vip.Inquiry
	whole bool              // every node that lives tells its MACs: who has another is no node
	asked map[netip.Addr]bool
}

func newWire(world vip.World) wire {
	w := wire{nodes: make(map[string]string), whole: true, asked: make(map[netip.Addr]bool)}
	var all []string
	for _, x := range world.Members {
		macs := macs(x.Info)
		for _, mac := range macs {
			w.nodes[mac] = x.Name
		}
		all = append(all, macs...)
		if x.Alive && len(macs) == 0 {
			w.whole = false
		}
	}
	for _, x := range world.Macvlans { // their address moves along with the VIP
		w.nodes[x.MAC] = world.Self
		all = append(all, x.MAC)
	}
	w.all = strings.Join(all, " ")
	return w
}

// macs is the link-layer addresses of a node.
func macs(info vip.NodeInfo) []string {
	var macs []string
	for _, l := range info.Links {
		if l.MAC != "" && !slices.Contains(macs, l.MAC) {
			macs = append(macs, l.MAC)
		}
	}
	return macs
}

// inquire asks about an address, once.
func (m *maker) inquire(i vip.AddressCheck) {
	if !m.wire.asked[i.Addr] {
		m.wire.asked[i.Addr] = true
		m.plan.AddressChecks = append(m.plan.AddressChecks, i)
	}
}

// found is what is known about what i asks.
func (m *maker) found(i vip.AddressCheck) (vip.CheckResult, bool) {
	f, ok := m.CheckResults[i.Addr]
	return f, ok && f.Same(i)
}

// vacant asks whether an address that is new is free, and reports what is known:
// the MACs of other hosts that have it.
func (m *maker) vacant(a vip.Address) (free bool, by []string) {
	i := vip.AddressCheck{Addr: a.Addr, Link: a.Link, Kind: vip.CheckProbe, AllowedMACs: m.wire.all}
	m.inquire(i)
	f, ok := m.found(i)
	return ok && f.OK(), f.UnexpectedMACs
}

// ahead asks whether the new addresses of a unit are free while its lease is
// still being claimed; by another node, as this one believes, which may be wrong in
// a burst of them.
func (m *maker) ahead(u *unit) {
	self := m.members[m.Self]
	if !m.Inquire || self == nil || u.target != self && (self.excluded != "" || !m.likely(u.services[0], self)) {
		return
	}
	m.each(u, func(s *service) {
		for _, a := range s.addrs {
			if s.arp && a.New && !m.bound(a) && linkFault(a.Link, &self.Info) == "" {
				m.vacant(a)
			}
		}
	})
}

// foresee asks whether the addresses of new Services that have no endpoints yet
// are free, so that nobody waits for that once they have. Who will carry them can't
// be known, but is likely to be one of those that carry the fewest now.
func (m *maker) foresee() {
	self := m.members[m.Self]
	if !m.Inquire || self == nil || self.excluded != "" {
		return
	}
	for _, s := range m.waiting {
		age := m.Now.Sub(s.Created)
		if age < 0 || age >= hope || s.host != "" || len(s.Ingress) > 0 || !s.arp || !m.likely(s, self) {
			continue
		}
		for _, a := range s.addrs {
			a.Link, _ = m.locate(a.Addr, s.Interface, &self.Info)
			if !s.leased(a.Addr) && !m.bound(a) && linkFault(a.Link, &self.Info) == "" {
				m.vacant(a)
			}
		}
	}
}

// likely reports whether mb is one of the first in rank for a Service.
func (m *maker) likely(s *service, mb *member) bool {
	key, before := hashKey(s.lease), 0
	for _, x := range m.alive {
		if x.excluded == "" && (x.units < mb.units || x.units == mb.units && rank(key, x.hash) > rank(key, mb.hash)) {
			before++
		}
	}
	return before < askers
}

// inUse says that other hosts have an address that was to be used.
func inUse(a vip.Address, by []string) string {
	return fmt.Sprintf("%s is in use by another host on %s (MAC %s), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free",
		a.Addr, a.Link, strings.Join(by, ", "))
}

// contested asks whether another host claims an address that this node has, if
// one was heard to, and tells the user.
func (m *maker) contested(s *service, a vip.Address) {
	i := vip.AddressCheck{Addr: a.Addr, Link: a.Link, Kind: vip.CheckDefend, AllowedMACs: m.wire.all}
	sound, heard := m.Heard[a.Addr]
	age := m.Now.Sub(sound.At)
	heard = heard && sound.Link == a.Link && m.wire.whole && m.wire.nodes[sound.MAC] == "" && age < recall
	f, known := m.found(i)
	if !heard && (!known || f.OK() && f.ClearedAt.IsZero()) {
		return
	}
	m.inquire(i)
	var by []string
	if known {
		by = f.UnexpectedMACs
	}
	if heard && age < echo {
		m.again(echo - age)
		if len(by) == 0 { // else the finding names it, or has named enough
			by = []string{sound.MAC}
		}
	}
	if len(by) == 0 {
		if since := f.ClearedAt; known {
			if since.IsZero() { // that host answers no question
				since = sound.At
			}
			m.say(s, vip.VIPAnswered, fmt.Sprintf("no other host on %s claims %s any more", a.Link, a.Addr), since.Unix())
		}
		return
	}
	text := fmt.Sprintf("another host on %s claims %s (MAC %s): some clients may reach that host instead; take the address off it. Node %s goes on announcing the VIP",
		a.Link, a.Addr, strings.Join(by, ", "), m.Self)
	m.say(s, vip.VIPForeignMAC, text, 0)
	s.verdict.Reason, s.verdict.Message = vip.VIPForeignMAC, text
}

// verify asks whether the owner of a unit answers for its addresses, if it is this
// node's turn to, and tells the user if it doesn't. An owner has bound what it
// wrote into the status.
func (m *maker) verify(u *unit, s *service) {
	owner := m.members[u.claim.Holder]
	if owner == nil || !owner.Alive || s.host != owner.Name || !s.arp {
		return
	}
	for _, a := range s.addrs {
		told := slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a.Addr })
		if !told || m.wanted[a.Addr] || !m.witness(u, s, a, owner) {
			continue
		}
		i := vip.AddressCheck{
			Addr: a.Addr, Link: a.Link, Kind: vip.CheckVerify, Owner: owner.Name, Transitions: u.claim.Transitions,
			AllowedMACs: strings.Join(macs(owner.Info), " "),
		}
		if s.leased(a.Addr) {
			i.AllowedMACs = strings.TrimSpace(i.AllowedMACs + " " + s.tenant.mac)
		}
		m.inquire(i)
		if f, known := m.found(i); known {
			m.tell(s, f)
		}
	}
}

// tell tells the user what this node, which is not the owner, has found.
func (m *maker) tell(s *service, f vip.CheckResult) {
	switch {
	case len(f.UnexpectedMACs) > 0:
		var who []string
		for _, mac := range f.UnexpectedMACs {
			if node := m.wire.nodes[mac]; node != "" {
				mac += ", node " + node
			}
			who = append(who, "MAC "+mac)
		}
		s.verdict.Reason = vip.VIPForeignMAC
		s.verdict.Message = fmt.Sprintf("node %s has asked on %s who has %s: node %s owns it, but somebody else answers (%s)",
			m.Self, f.Link, f.Addr, f.Owner, strings.Join(who, "; "))
	case f.NoAnswer:
		s.verdict.Reason = vip.VIPUnanswered
		s.verdict.Message = fmt.Sprintf("node %s has asked on %s who has %s: node %s owns it, but does not answer; look at that node's firewall (ARP, ICMPv6 neighbor solicitations), at its sysctls arp_ignore and arp_filter, and at the network between the two",
			m.Self, f.Link, f.Addr, f.Owner)
	case !f.ClearedAt.IsZero():
		m.say(s, vip.VIPAnswered, fmt.Sprintf("node %s, which owns %s, answers for it again, and nobody else does", f.Owner, f.Addr), f.ClearedAt.Unix())
		return
	default:
		return
	}
	m.say(s, s.verdict.Reason, s.verdict.Message, 0)
}

// witness reports whether this node is the one to ask for an address of another:
// the first in rank of those that share the owner's network.
func (m *maker) witness(u *unit, s *service, a vip.Address, owner *member) bool {
	self := m.members[m.Self]
	if self == nil || !self.Alive || self == owner {
		return false
	}
	link, _ := m.locate(a.Addr, s.Interface, &owner.Info)
	theirs := linkOf(&owner.Info, link)
	if theirs == nil || !shares(linkOf(&self.Info, a.Link), theirs) {
		return false
	}
	mine := rank(u.hash, self.hash)
	for _, x := range m.alive {
		if x == owner || x == self || rank(u.hash, x.hash) < mine {
			continue
		}
		link, _ := m.locate(a.Addr, s.Interface, &x.Info)
		if shares(linkOf(&x.Info, link), theirs) {
			return false
		}
	}
	return true
}

func linkOf(info *vip.NodeInfo, name string) *vip.Link {
	for i := range info.Links {
		if info.Links[i].Name == name {
			return &info.Links[i]
		}
	}
	return nil
}

// shares reports whether a link is up and in one of the networks of another.
func shares(l, o *vip.Link) bool {
	if l == nil || !l.Up || l.MAC == "" {
		return false
	}
	for _, p := range l.Prefixes {
		for _, q := range o.Prefixes {
			if p.Bits() == q.Bits() && p.Contains(q.Addr()) {
				return true
			}
		}
	}
	return false
}

// other reports whether a MAC is that of another node of the cluster.
func (m *maker) other(mac string) bool {
	name := m.wire.nodes[mac]
	return name != "" && name != m.Self
}
