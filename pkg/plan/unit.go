package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// unit plans what this node does about one unit.
func (m *maker) unit(u *unit) {
	switch {
	case u.claim.Foreign && u.claim.Holder != "":
		m.each(u, func(s *service) {
			m.forward(s, nowhere)
			m.settle(s, vip.HeldByOtherAnnouncer, fmt.Sprintf("the lease %s is held and renewed by another announcer (%s); Herald takes over when that stops", u.lease, u.claim.Holder))
		})
	case u.claim.Holder == "" && u.target == nil:
		why := m.why(u)
		m.each(u, func(s *service) { m.settle(s, vip.NoEligibleNode, why) })
	case u.claim.Holder == "":
		m.claim(u)
	case u.claim.Holder == m.Self:
		m.own(u)
	default:
		m.elsewhere(u)
	}
}

func (m *maker) each(u *unit, f func(*service)) {
	for _, s := range u.services {
		f(s)
	}
}

// stakes says the same of all leases of u.
func (m *maker) stakes(u *unit, do vip.LeaseAction, to string) {
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		i := slices.IndexFunc(u.services, func(s *service) bool { return s.lease == k })
		stake := vip.LeaseIntent{Lease: k, Service: u.services[i].Key, Action: do, Successor: to}
		if m.Election {
			stake.UID = u.services[i].UID
		}
		m.plan.LeaseIntents = append(m.plan.LeaseIntents, stake)
	}
}

// claim plans for a free unit.
func (m *maker) claim(u *unit) {
	s := u.services[0]
	stake := vip.LeaseIntent{Lease: u.lease, Service: s.Key, Action: vip.Acquire}
	if m.Election {
		stake.UID = s.UID // the control plane has none
	}
	if u.target.Name != m.Self {
		stake.Action, stake.ExpectedHolder = vip.Follow, u.target.Name
	}
	m.ahead(u)
	m.plan.LeaseIntents = append(m.plan.LeaseIntents, stake)
	m.each(u, func(s *service) {
		m.forward(s, nowhere)
		s.verdict.Reason, s.verdict.Message = vip.VIPClaiming, "node "+u.target.Name+" is about to claim it"
	})
	m.linger(u)
}

// own plans for a unit that this node holds.
func (m *maker) own(u *unit) {
	self := m.members[m.Self]
	if self == nil || !m.Tenure.Holds(m.Now) {
		m.stakes(u, vip.Acquire, "")
		m.each(u, func(s *service) {
			m.forward(s, nowhere)
			s.verdict.Reason = vip.NodeLeaseNotHeld
			s.verdict.Message = "this node could not renew its node lease in time and announces nothing until it can"
		})
		return
	}
	switch fault := m.barred(u, self); {
	case u.target != nil:
		m.stakes(u, vip.HandOver, u.target.Name)
	case fault == "":
		m.stakes(u, vip.Acquire, "")
	case u.control && self.refuses == "":
		m.stakes(u, vip.Acquire, "") // there is nothing better
	default:
		why := m.why(u)
		m.each(u, func(s *service) { m.settle(s, vip.NoEligibleNode, why) })
		return
	}
	m.hire(u)
	m.each(u, func(s *service) { m.carry(u, s) })
}

// carry binds and announces what s has on this node.
func (m *maker) carry(u *unit, s *service) {
	if !s.arp {
		if s.Forward != nil {
			m.say(s, vip.PortNotMapped, "the VIP is on no link of this node's, where gateways could be asked: it is announced by BGP only", 0)
		}
		m.tellRouters(u, s)
		return
	}
	if s.Local && !m.Election && !s.control {
		m.say(s, vip.LocalNoElection, "externalTrafficPolicy is Local, which needs svc_election=true: node "+m.Self+" owns all VIPs, whether it has an endpoint of this Service or not", 0)
	}
	c := cargo{}
	ready := m.served(s)
	for _, a := range s.addrs {
		m.load(s, a, ready, &c)
	}
	// Once it is being given away, the status is the successor's to write, and ports its to keep open.
	_, giving := m.HandingOver[u.lease]
	m.forward(s, func(a vip.Address) bool { return m.bound(a) && !giving })
	if len(c.here) > 0 && !giving {
		m.tellForward(s)
		c.ingress = append(c.ingress, m.external(s)...)
	}
	m.conclude(u, s, giving, &c)
	for _, a := range s.addrs {
		if m.bound(a) {
			m.contested(s, a)
		}
	}
}

// A cargo is how far the addresses of a Service have come on this node.
type cargo struct {
	here    []string // bound, and on which link
	taken   []string // in use by others, and what to do about it
	outdone bool     // another node has been heard to announce one, and this one can't ask why
	ingress []vip.Ingress
}

// served reports whether kube-proxy on this node serves s, as far as that is asked.
func (m *maker) served(s *service) bool {
	if !s.Local || !m.Election || s.HealthCheckNodePort == 0 {
		return true
	}
	return m.probe(s)
}

// load wants one address of s on this node, if that may be.
func (m *maker) load(s *service, a vip.Address, ready bool, c *cargo) {
	on := a.Link
	if s.leased(a.Addr) {
		on = parent(s, &m.members[m.Self].Info)
	}
	if fault := linkFault(on, &m.members[m.Self].Info); fault != "" {
		if s.unit.target == nil { // else it moves, which will be said
			m.say(s, vip.NoEligibleNode, fmt.Sprintf("node %s owns %s, but %s", m.Self, a.Addr, fault), 0)
		}
		return
	}
	if s.leased(a.Addr) {
		if _, holds := m.contract(s, vip.FamilyOf(a.Addr)); !holds || !m.stands(s.tenant) {
			return
		}
	}
	if m.outdone(a) {
		c.outdone = true
		m.listen(a)
		return
	}
	bound := m.bound(a)
	if !ready && !bound {
		return // kube-proxy here would drop what the node attracts
	}
	if a.New && m.Inquire && !bound {
		if free, by := m.vacant(a); !free {
			if len(by) > 0 {
				c.taken = append(c.taken, inUse(a, by))
			}
			return
		}
	}
	m.want(a, false)
	if !bound {
		return
	}
	if s.bgp && (m.Election || s.control) {
		m.route(s, a.Addr)
	}
	c.here = append(c.here, a.Addr.String()+" on "+a.Link)
	c.ingress = append(c.ingress, vip.Ingress{Addr: a.Addr, IPMode: m.mode(s), Ports: s.Ports})
}

// outdone reports whether another node was heard announcing a while this one can't
// renew: it is the successor, which this node can't hear of in another way.
func (m *maker) outdone(a vip.Address) bool {
	h, ok := m.Heard[a.Addr]
	return ok && !m.Tenure.RenewalLateSince.IsZero() && h.At.After(m.Tenure.RenewalLateSince) && m.other(h.MAC)
}

// conclude tells the Service's status and its user what has become of it here.
func (m *maker) conclude(u *unit, s *service, giving bool, c *cargo) {
	s.verdict.AnnouncedHere = len(c.here) > 0
	s.verdict.Reason, s.verdict.Message = vip.VIPAnnounced, "node "+m.Self+" announces "+strings.Join(c.here, ", ")
	missing, wrong, open := m.leasing(s)
	switch {
	case giving || s.control || open && len(s.Ingress) > 0 && s.host != "":
		// With a lease in question the status stays as it is, for the moment that takes.
	case len(c.ingress) > 0:
		m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key, VIPHost: m.Self, Announcer: m.Mark, Ingress: c.ingress,
			DHCPLeases: m.record(s, func(x netip.Addr) bool {
				return slices.ContainsFunc(c.ingress, func(i vip.Ingress) bool { return i.Addr == x })
			})})
	case missing > 0 && missing == len(s.hires) && len(s.addrs) == 0 && s.host != "":
		m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key})
	}
	if len(wrong) > 0 {
		m.say(s, vip.DHCPFailed, fmt.Sprintf("node %s: %s", m.Self, strings.Join(wrong, "; ")), 0)
	}
	switch {
	case len(c.taken) > 0:
		if len(c.ingress) == 0 && s.host == m.Self { // it asked for other addresses before
			m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key})
		}
		s.verdict.Reason, s.verdict.Message = vip.AddressInUse, strings.Join(c.taken, "; ")
		m.say(s, vip.AddressInUse, s.verdict.Message, 0)
	case missing > 0 && len(wrong) > 0:
		s.verdict.Reason, s.verdict.Message = vip.DHCPFailed, fmt.Sprintf("node %s: %s", m.Self, strings.Join(wrong, "; "))
	case missing > 0:
		s.verdict.Reason, s.verdict.Message = vip.DHCPPending, fmt.Sprintf("node %s asks for an address on %s", m.Self, s.tenant.link)
	case c.outdone:
		s.verdict.Reason, s.verdict.Message = vip.VIPElsewhere, "this node can't reach the API server, and another one announces it"
	case len(c.here) < len(s.addrs):
		s.verdict.Message = fmt.Sprintf("node %s owns it; bound so far: %d of %d addresses", m.Self, len(c.here), len(s.addrs))
	default:
		m.arrived(u, s)
	}
}

// arrived tells the user that this node announces s, and from where it came.
func (m *maker) arrived(u *unit, s *service) {
	if from := u.claim.PreviousHolder; from != "" && from != m.Self {
		m.say(s, vip.VIPMoved, "moved from node "+from+": "+s.verdict.Message, u.claim.Transitions)
	} else {
		m.say(s, vip.VIPAnnounced, s.verdict.Message, u.claim.Transitions)
	}
}

func (m *maker) mode(s *service) vip.IPMode {
	if s.IPMode != "" {
		return s.IPMode
	}
	return m.Mode
}

// want adds an address and what to do about it on the wire; an address that
// several Services share is wanted once.
func (m *maker) want(a vip.Address, listen bool) {
	if m.wanted[a.Addr] {
		return
	}
	m.wanted[a.Addr] = true
	m.plan.Addresses = append(m.plan.Addresses, a)
	m.plan.Announcements = append(m.plan.Announcements, vip.Announcement{Addr: a.Addr, Link: a.Link, ListenOnly: listen})
}

// listen wants to hear who announces an address that this node does not have: who
// stopped listening would not know for what reason it had let go.
func (m *maker) listen(a vip.Address) {
	x := vip.Announcement{Addr: a.Addr, Link: a.Link, ListenOnly: true}
	if !m.wanted[a.Addr] && !slices.Contains(m.plan.Announcements, x) {
		m.plan.Announcements = append(m.plan.Announcements, x)
	}
}

// elsewhere plans for a unit that another node holds.
func (m *maker) elsewhere(u *unit) {
	m.each(u, func(s *service) {
		m.forward(s, nowhere)
		s.verdict.Reason, s.verdict.Message = vip.VIPElsewhere, "node "+u.claim.Holder+" announces it"
	})
	for _, k := range u.records {
		if c := m.Claims[k]; c.Valid && c.Holder == m.Self {
			m.plan.LeaseIntents = append(m.plan.LeaseIntents, vip.LeaseIntent{Lease: k, Action: vip.HandOver, Successor: u.claim.Holder})
		}
	}
	m.linger(u)
	m.each(u, func(s *service) { m.verify(u, s) })
}

// linger keeps answering for what was handed to another node until that one is
// heard, or until the deadline: make before break.
func (m *maker) linger(u *unit) {
	self := m.members[m.Self]
	if self == nil || !m.Tenure.Holds(m.Now) {
		return
	}
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		l, ok := m.HandingOver[k]
		if !ok || !m.Now.Before(l.Until) {
			continue
		}
		for _, s := range u.services {
			for _, a := range s.addrs {
				if s.bgp && (m.Election || s.control) {
					m.route(s, a.Addr).Drain = true // nothing says when routers have heard of the successor
					m.again(l.Until.Sub(m.Now))
				}
				if !s.arp || m.heard(a, l) || linkFault(a.Link, &self.Info) != "" || !m.bound(a) {
					continue
				}
				a.Until = l.Until
				m.want(a, true)
			}
		}
	}
}

func (m *maker) bound(a vip.Address) bool {
	return m.has[place{a.Addr, a.Link}]
}

// heard reports whether the successor was heard: another node, not any host.
func (m *maker) heard(a vip.Address, l vip.HandingOver) bool {
	s, ok := m.Heard[a.Addr]
	return ok && !s.At.Before(l.Since) && (!m.wire.whole || m.wire.nodes[s.MAC] != "")
}

// clean clears the status of every Service that nobody is to announce, if this
// node has the duty to.
func (m *maker) clean() {
	for _, s := range m.all {
		if !s.settled || s.host == "" || s.verdict.Reason == vip.HeldByOtherAnnouncer || !m.duty(s) {
			continue
		}
		m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key})
		switch s.verdict.Reason {
		case vip.NotLoadBalancer, vip.OtherClass, vip.Ignored:
			m.say(s, vip.VIPWithdrawn, "no longer announced: "+s.verdict.Message, 0)
		}
	}
}

// strays tells about VIPs that this node answers for although it does not own them.
func (m *maker) strays() {
	for _, x := range m.Unmanaged {
		for _, u := range m.units {
			for _, s := range u.services {
				if u.claim.Holder == m.Self || !slices.ContainsFunc(s.addrs, func(a vip.Address) bool { return a.Addr == x.Addr }) {
					continue
				}
				m.say(s, vip.UnmanagedAddress, fmt.Sprintf("node %s has %s on %s, but Herald did not put it there and node %s does not own it; remove it with: ip addr del %s dev %s",
					m.Self, x.Addr, x.Link, m.Self, x.Prefix(), x.Link), 0)
			}
		}
	}
}
