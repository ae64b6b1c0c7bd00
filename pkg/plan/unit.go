package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A unitPlanner plans what this node does about units whose target is known.
type unitPlanner struct {
	*pass
	dhcp     *dhcp
	checks   *addressChecks
	routes   *routes
	mappings *mappings
}

// plan adds what this node does about one unit to the Plan, and sets the verdicts of its Services. It is the table in the
// package's comment from the unit's lease on.
func (m *unitPlanner) plan(u *unit) {
	holder := u.claim.Holder
	switch {
	case u.claim.Foreign && holder != "":
		for _, s := range u.services {
			m.mappings.want(s, false)
			m.reject(s, vip.HeldByOtherAnnouncer, fmt.Sprintf("the lease %s is held and renewed by another announcer (%s); Herald takes over when that stops", u.lease, holder))
		}
	case holder == "" && u.target == nil:
		m.rejectUnit(u)
	case holder == "":
		m.claim(u)
	case holder != m.Self:
		m.follow(u)
	case m.self == nil || !m.Tenure.Holds(m.Now):
		m.wantLeases(u, vip.Acquire, "")
		for _, s := range u.services {
			m.mappings.want(s, false)
			s.setVerdict(vip.NodeLeaseNotHeld, "this node could not renew its node lease in time and announces nothing until it can")
		}
	default:
		m.keepOrHandOver(u)
	}
}

// rejectUnit rejects the Services of a unit for which no node is eligible, but leaves those that every node
// advertises to reportUnowned: there may be nodes that can serve them.
func (m *unitPlanner) rejectUnit(u *unit) {
	why := m.whyNoNode(&u.requirements)
	for _, s := range u.services {
		if !s.everyNodeAdvertises {
			m.reject(s, vip.NoEligibleNode, why)
		}
	}
}

// wantLeases adds the same action for all leases of u, which this node holds, to the Plan.
func (m *unitPlanner) wantLeases(u *unit, action vip.LeaseAction, successor string) {
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		s := u.services[slices.IndexFunc(u.services, func(s *service) bool { return s.lease == k })]
		intent := s.leaseIntent(action)
		intent.Successor = successor
		m.out.LeaseIntents = append(m.out.LeaseIntents, intent)
	}
}

// leaseIntent is an action on the lease of s. It has no UID if the lease is not deleted with s.
func (s *service) leaseIntent(action vip.LeaseAction) vip.LeaseIntent {
	intent := vip.LeaseIntent{Lease: s.lease, Service: s.Key, Action: action}
	if s.leaseFollows {
		intent.UID = s.UID
	}
	return intent
}

// claim plans for a free unit: its target acquires the lease, all others follow that and mark it stalled if it
// does not.
func (m *unitPlanner) claim(u *unit) {
	intent := u.services[0].leaseIntent(vip.Acquire)
	if u.target != m.self {
		intent.Action, intent.ExpectedHolder = vip.Follow, u.target.Name
	}
	m.out.LeaseIntents = append(m.out.LeaseIntents, intent)
	m.checks.probeEarly(u)
	for _, s := range u.services {
		m.mappings.want(s, false)
		s.setVerdict(vip.VIPClaiming, "node "+u.target.Name+" is about to claim it")
	}
	m.keepUntilHeard(u)
}

// follow plans for a unit that another node holds: this one hands over the records of its leases that it has from
// before, keeps what it has handed over until it is heard there, and verifies that the holder answers.
func (m *unitPlanner) follow(u *unit) {
	for _, k := range u.records {
		if c := m.Claims[k]; c.Valid && c.Holder == m.Self {
			m.out.LeaseIntents = append(m.out.LeaseIntents, vip.LeaseIntent{Lease: k, Action: vip.HandOver, Successor: u.claim.Holder})
		}
	}
	m.keepUntilHeard(u)
	for _, s := range u.services {
		m.mappings.want(s, false)
		s.setVerdict(vip.VIPElsewhere, "node "+u.claim.Holder+" announces it")
		m.checks.verify(s)
	}
}

// keepUntilHeard keeps those addresses of a unit that this node has handed over and that are still bound: until
// the successor is heard to announce them, or until the deadline. Routes are kept until the deadline, draining.
// An address that is leased by DHCP is not kept: here it is bound on its macvlan, which is a's link only for the
// holder (decision 0031).
func (m *unitPlanner) keepUntilHeard(u *unit) {
	if len(m.HandingOver) == 0 || m.self == nil || !m.Tenure.Holds(m.Now) {
		return
	}
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		h, ok := m.HandingOver[k]
		if !ok || !m.Now.Before(h.Until) {
			continue
		}
		for _, s := range u.services {
			for _, a := range s.addrs {
				if s.ownerAdvertises {
					m.routes.add(s, a.Addr).Drain = true // nothing says when routers have heard of the successor
					m.replanAfter(h.Until.Sub(m.Now))
				}
				if s.bindsAddresses && !m.successorHeard(a.Address, h) && linkFault(&m.self.Info, a.Link) == "" && m.isBound(a.Address) {
					a.Until = h.Until
					m.wantAddress(a.Address, true)
				}
			}
		}
	}
}

// successorHeard reports whether a was announced by another host since it was handed over: by another node, if
// all nodes publish their MACs.
func (m *unitPlanner) successorHeard(a vip.Address, h vip.HandingOver) bool {
	x, ok := m.Heard[a.Addr]
	return ok && !x.At.Before(h.Since) && (!m.checks.complete || m.checks.nodeByMAC[x.MAC] != "")
}

// keepOrHandOver plans for a unit that this node holds: it hands it over if there is a target, keeps it if this
// node is eligible (or the unit is keptWithoutEligible), or releases its leases by wanting nothing of them.
// Unless released it is announced.
func (m *unitPlanner) keepOrHandOver(u *unit) {
	switch {
	case u.target != nil:
		m.wantLeases(u, vip.HandOver, u.target.Name)
	case ineligible(&u.requirements, m.self) == "", u.services[0].keptWithoutEligible && m.self.refusal == "":
		m.wantLeases(u, vip.Acquire, "")
	default:
		m.rejectUnit(u)
		return
	}
	m.dhcp.request(u)
	// Once it is being handed over, statuses are the successor's to write, and ports its to keep open.
	handingOver := m.handingOver(u)
	for _, s := range u.services {
		if s.bindsAddresses {
			m.announce(s, handingOver)
			continue
		}
		if s.Forward != nil {
			m.event(s, vip.PortNotMapped, "the VIP is on no link of this node's, where gateways could be asked: it is announced by BGP only", 0)
		}
		m.routes.advertise(s, handingOver)
	}
}

// A progress is how far the addresses of a Service have come on this node.
type progress struct {
	bound      []string      // addresses, each with its link
	inUse      []string      // addresses that other hosts have, each with what to do about it
	superseded bool          // another node announces one, and this one can't renew its lease
	ingress    []vip.Ingress // for the status
}

// announce binds and announces what s has on this node, which owns it, and reports how far that is.
func (m *unitPlanner) announce(s *service, handingOver bool) {
	if s.ignoresEndpoints {
		m.event(s, vip.LocalNoElection, "externalTrafficPolicy is Local, which needs svc_election=true: node "+m.Self+" owns all VIPs, whether it has an endpoint of this Service or not", 0)
	}
	var c progress
	ready := !s.waitsForKubeProxy || m.kubeProxyServes(s)
	for _, a := range s.addrs {
		m.bindAddress(s, a, ready, &c)
	}
	m.mappings.want(s, !handingOver)
	if len(c.bound) > 0 && !handingOver {
		m.mappings.report(s)
		c.ingress = append(c.ingress, m.mappings.externalIngress(s)...)
	}
	s.verdict.AnnouncedHere = len(c.bound) > 0
	m.report(s, handingOver, &c)
	for _, a := range s.addrs {
		if m.isBound(a.Address) {
			m.checks.defend(s, a.Address)
		}
	}
}

// bindAddress wants one address of s bound and announced, if its link is up; if its lease is valid and its
// macvlan there, should it be leased by DHCP; if no other node has superseded this one; and, unless it is bound
// already, if kube-proxy serves s (ready) and no other host has an address that is new. It adds to c what the
// kernel has, or what is in the way.
func (m *unitPlanner) bindAddress(s *service, a address, ready bool, c *progress) {
	link := a.Link
	if a.client != nil {
		link = m.self.Info.LinkFor(s.Interface)
	}
	if fault := linkFault(&m.self.Info, link); fault != "" {
		if s.unit.target == nil { // else the Event about the move is enough
			m.event(s, vip.NoEligibleNode, fmt.Sprintf("node %s owns %s, but %s", m.Self, a.Addr, fault), 0)
		}
		return
	}
	if a.client != nil && !m.dhcp.usable(s, a.Addr) {
		return
	}
	if m.superseded(a.Address) {
		c.superseded = true
		m.listen(a.Address)
		return
	}
	bound := m.isBound(a.Address)
	if !ready && !bound {
		return // kube-proxy here would drop what the node attracts
	}
	if a.New && m.ProbeNew && !bound {
		if free, others := m.checks.probe(a.Address); !free {
			if len(others) > 0 {
				c.inUse = append(c.inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free",
					a.Addr, a.Link, strings.Join(others, ", ")))
			}
			return
		}
	}
	m.wantAddress(a.Address, false)
	if !bound {
		return
	}
	if s.ownerAdvertises {
		m.routes.add(s, a.Addr)
	}
	c.bound = append(c.bound, a.Addr.String()+" on "+a.Link)
	c.ingress = append(c.ingress, m.ingress(s, a.Addr))
}

// superseded reports whether another node announced a after this node's lease should have been renewed: that
// node is the successor, of which this one can't hear in another way.
func (m *unitPlanner) superseded(a vip.Address) bool {
	late := m.Tenure.RenewalLateSince
	h := m.Heard[a.Addr]
	node := m.checks.nodeByMAC[h.MAC]
	return !late.IsZero() && h.At.After(late) && node != "" && node != m.Self
}

// listen goes on listening for announcements of an address that is not bound here because another node
// announces it.
func (m *unitPlanner) listen(a vip.Address) {
	x := vip.Announcement{Addr: a.Addr, Link: a.Link, ListenOnly: true}
	if !m.wanted[a.Addr] && !slices.Contains(m.out.Announcements, x) {
		m.out.Announcements = append(m.out.Announcements, x)
	}
}

// report sets the verdict and the status of s, which this node owns and binds. The verdict names the first that
// there is of: addresses in use, missing DHCP leases, another node that announces s, addresses not bound yet;
// else it is that s is announced, with an Event. The status gets the addresses that are bound; it is cleared if
// none is because of another host or the DHCP server, and left alone while s is handed over or a DHCP client
// has no answer yet.
func (m *unitPlanner) report(s *service, handingOver bool, c *progress) {
	missing, problems, undecided := m.dhcp.missingLeases(s)
	switch {
	case len(c.inUse) > 0 && len(c.ingress) == 0 && s.statusBy == m.Self: // it asked for other addresses before
		m.clearStatus(s)
	case handingOver || !s.hasStatus || undecided && len(s.Ingress) > 0 && s.statusBy != "":
		// While the client asks whether a lease is still good the status stays.
	case len(c.ingress) > 0:
		m.writeStatus(s, c.ingress, m.dhcp.leasesToRecord(s, c.ingress))
	case missing > 0 && missing == len(s.dhcpFamilies) && len(s.addrs) == 0 && s.statusBy != "":
		m.clearStatus(s)
	}
	problem := ""
	if len(problems) > 0 {
		problem = fmt.Sprintf("node %s: %s", m.Self, strings.Join(problems, "; "))
		m.event(s, vip.DHCPFailed, problem, 0)
	}
	switch {
	case len(c.inUse) > 0:
		m.setProblem(s, vip.AddressInUse, strings.Join(c.inUse, "; "))
	case missing > 0 && problem != "":
		s.setVerdict(vip.DHCPFailed, problem)
	case missing > 0:
		s.setVerdict(vip.DHCPPending, fmt.Sprintf("node %s asks for an address on %s", m.Self, s.client.link))
	case c.superseded:
		s.setVerdict(vip.VIPElsewhere, "this node can't reach the API server, and another one announces it")
	case len(c.bound) < len(s.addrs):
		s.setVerdict(vip.VIPAnnounced, fmt.Sprintf("node %s owns it; bound so far: %d of %d addresses", m.Self, len(c.bound), len(s.addrs)))
	default:
		s.setVerdict(vip.VIPAnnounced, "node "+m.Self+" announces "+strings.Join(c.bound, ", "))
		m.addAnnounced(s)
	}
}

// addAnnounced adds the Event that this node announces s, as its verdict says: VIPMoved if it has taken it over
// from another node.
func (p *pass) addAnnounced(s *service) {
	claim := s.unit.claim
	if from := claim.PreviousHolder; from != "" && from != p.Self {
		p.event(s, vip.VIPMoved, "moved from node "+from+": "+s.verdict.Message, claim.Transitions)
	} else {
		p.event(s, vip.VIPAnnounced, s.verdict.Message, claim.Transitions)
	}
}

// ingress is the entry of an address in the status of s.
func (p *pass) ingress(s *service, a netip.Addr) vip.Ingress {
	return vip.Ingress{Addr: a, IPMode: cmp.Or(s.IPMode, p.IPMode), Ports: s.Ports}
}

// reportUnmanaged sends an Event about each VIP that this node's kernel has although this node does not own it,
// and Herald did not bind it.
func (m *unitPlanner) reportUnmanaged(units []*unit) {
	for _, x := range m.Unmanaged {
		for _, u := range units {
			for _, s := range u.services {
				if u.claim.Holder != m.Self && s.has(x.Addr) {
					m.event(s, vip.UnmanagedAddress, fmt.Sprintf("node %s has %s on %s, but Herald did not put it there and node %s does not own it; remove it with: ip addr del %s dev %s",
						m.Self, x.Addr, x.Link, m.Self, x.Prefix(), x.Link), 0)
				}
			}
		}
	}
}

// has reports whether a is one of the addresses that s may have.
func (s *service) has(a netip.Addr) bool {
	return slices.ContainsFunc(s.addrs, func(x address) bool { return x.Addr == a })
}
