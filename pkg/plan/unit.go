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

// plan adds what this node does about u to the Plan, and sets the verdicts of its Services.
// The first case applies: another program holds the lease (rejected); it is free and no node
// may claim it (rejected), or one may (planFree); another node holds it (planHeldElsewhere);
// this node holds it without a valid tenure (the leases are kept, nothing is announced,
// NodeLeaseNotHeld); or with one (keepOrHandOver).
func (m *unitPlanner) plan(u *unit) {
	holder := u.claim.Holder
	switch {
	case u.claim.Foreign && holder != "":
		m.wantOwner(u, "")
		for _, s := range u.services {
			m.mappings.addMappings(s, false)
			m.reject(s, vip.HeldByOtherAnnouncer, fmt.Sprintf("the lease %s is held and renewed by another announcer (%s); Herald takes over when that stops", u.lease, holder))
		}
	case holder == "" && u.target == nil:
		m.wantOwner(u, "")
		m.rejectUnit(u)
	case holder == "":
		m.planFree(u)
	case holder != m.Self:
		m.planHeldElsewhere(u)
	case m.self == nil || !m.Tenure.Holds(m.Now):
		m.wantOwner(u, m.Self)
		for _, s := range u.services {
			m.mappings.addMappings(s, false)
			s.setVerdict(vip.NodeLeaseNotHeld, "this node could not renew its node lease in time and announces nothing until it can")
		}
	default:
		m.keepOrHandOver(u)
	}
}

// rejectUnit rejects the Services of u, for which no node is eligible, as NoEligibleNode, with the
// reason of every node. If one that is alive lacks nothing but an endpoint, those that have an address and a
// status keep it, and showAllocated sets their verdict instead. It leaves out those that every node advertises: reportUnowned sets their
// verdict, since some nodes may serve them.
func (m *unitPlanner) rejectUnit(u *unit) {
	why := m.whyNoNode(&u.requirements)
	elsewhere := u.requirements
	elsewhere.endpoint = false
	wantsEndpoint := slices.ContainsFunc(m.alive, func(n *member) bool { return whyIneligible(&elsewhere, n) == "" })
	for _, s := range u.services {
		switch {
		case s.everyNodeAdvertises:
		case wantsEndpoint && s.hasStatus && len(s.addrs) > 0:
			m.showAllocated(s, vip.NoEligibleNode, why)
		default:
			m.reject(s, vip.NoEligibleNode, why)
		}
	}
}

// wantOwner adds to the Plan that u, with its records, is to be at a node; "": at none.
func (m *unitPlanner) wantOwner(u *unit, node string) {
	cause := ""
	if u.target != nil && node == u.target.Name {
		cause = u.cause
	}
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		m.out.Owners = append(m.out.Owners, vip.Owner{Unit: k, Node: node, Cause: cause})
	}
}

// planFree plans for a unit that no node has, but that has a target. The verdicts are VIPClaiming. New addresses are
// probed early, addresses that this node has given away are kept until heard, and mappings stay.
func (m *unitPlanner) planFree(u *unit) {
	m.wantOwner(u, u.target.Name)
	m.checks.probeEarly(u)
	for _, s := range u.services {
		m.mappings.addMappings(s, false)
		s.setVerdict(vip.VIPClaiming, "node "+u.target.Name+" is about to claim it")
	}
	m.keepUntilHeard(u)
}

// planHeldElsewhere plans for a unit that another node has, which is to have its records, too. The verdicts are
// VIPElsewhere, or what withoutEndpointAtOwner says. Addresses that this node has given away are kept until heard.
func (m *unitPlanner) planHeldElsewhere(u *unit) {
	m.wantOwner(u, u.claim.Holder)
	m.out.Owners[len(m.out.Owners)-1-len(u.records)].Stays = true // whatever becomes of its owner, this is no choice
	m.keepUntilHeard(u)
	for _, s := range u.services {
		m.mappings.addMappings(s, false)
		if why := m.withoutEndpointAtOwner(s); why != "" {
			s.setVerdict(vip.NoEligibleNode, why)
			continue
		}
		s.setVerdict(vip.VIPElsewhere, "node "+u.claim.Holder+" announces it")
		m.checks.verify(s)
	}
}

// keepUntilHeard does something if a lease of u is in HandingOver and its Until not over: this node has
// handed it over, and its tenure is valid. Of all Services of u it keeps those addresses bound that are
// bound here, their link up, until another node is heard to announce them, or till Until: this node goes on
// answering for them, and repeats no announcement. Routes of Services that the owner advertises are
// kept, draining, till Until, whoever is heard; then is planned again (replanAfter).
//
// An address leased by DHCP is not kept: it is bound on its macvlan, which is a.Link only for
// the holder (docs/why.md, "DHCP identity").
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
					m.routes.addRoute(s, a.Addr).Drain = true // nothing says when routers have heard of the successor
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

// successorHeard reports whether a host announced a at or after h.Since. The host must have
// the MAC of a node, unless some node that is alive publishes no MAC: then any host counts.
func (m *unitPlanner) successorHeard(a vip.Address, h vip.HandingOver) bool {
	x, ok := m.Heard[a.Addr]
	return ok && !x.At.Before(h.Since) && (!m.checks.complete || m.checks.nodeByMAC[x.MAC] != "")
}

// keepOrHandOver plans for a unit that this node holds with a valid tenure: it is handed over if it
// has a target, else kept if this node is eligible or would be if it were not isolated (then it knows of no node that could have u: if they are dead, nobody would
// serve u for as long as their node leases count), or if u is keptWithoutEligible, and this node refuses nothing else.
// Else u is rejected, and nobody is to have it.
//
// Unless rejected it is announced, even while it is handed over: DHCP is asked, and each
// Service is bound (announce) or, with BGP alone, advertised; one of these that asks for ports
// gets the Event PortNotMapped. One withoutEndpointAtOwner is neither.
func (m *unitPlanner) keepOrHandOver(u *unit) {
	switch {
	case u.target != nil:
		m.wantOwner(u, u.target.Name)
	case whyIneligible(&u.requirements, m.self) == "", m.self.isolatedOnly(&u.requirements),
		u.services[0].keptWithoutEligible && (m.self.refusal == "" || m.self.refusal == isolatedRefusal):
		m.wantOwner(u, m.Self)
	default:
		m.wantOwner(u, "")
		m.rejectUnit(u)
		return
	}
	m.requestDHCP(u)
	// Once it is being handed over, statuses are the successor's to write, and ports its to keep open.
	handingOver := m.handingOver(u)
	for _, s := range u.services {
		if why := m.withoutEndpointAtOwner(s); why != "" {
			m.reportWithoutEndpoint(s, why)
			continue
		}
		if s.bindsAddresses {
			m.announce(s, handingOver)
			continue
		}
		if s.Forward != nil {
			m.addEvent(s, vip.PortNotMapped, "the VIP is on no link of this node's, where gateways could be asked: it is announced by "+m.routes.protocols()+" only", 0)
		}
		m.routes.advertise(s, handingOver)
	}
}

// withoutEndpointAtOwner returns why s, with externalTrafficPolicy Local, is not served by the node that holds its unit, though that is eligible: it has
// endpoints of others that share an address or a lease with s, and none of s, since no node has one of each. "" if it is served.
func (p *pass) withoutEndpointAtOwner(s *service) string {
	u := s.unit
	owner := p.members[u.claim.Holder]
	if len(u.services) == 1 || !s.ownerNeedsEndpoint || owner == nil || containsSorted(s.Endpoints.Local(), owner.Name) || whyIneligible(&u.requirements, owner) != "" {
		return ""
	}
	return "node " + owner.Name + " carries the Services that share its address, or its lease, and this one has " + s.noEndpointThere + ": give it an address and lease of its own, or an endpoint where they have one"
}

// reportWithoutEndpoint sets the verdict of s, which is withoutEndpointAtOwner, to NoEligibleNode, with an Event and the conditions. Its status goes on naming
// what it has, and no node.
func (m *unitPlanner) reportWithoutEndpoint(s *service, why string) {
	m.mappings.addMappings(s, false)
	m.fail(s, vip.NoEligibleNode, why)
	if s.statusOurs && s.hasStatus {
		var ingress []vip.Ingress
		for _, a := range s.addrs {
			if s.statusHas(a.Addr) {
				ingress = append(ingress, m.ingress(s, a.Addr))
			}
		}
		m.writeStatus(s, "", ingress, nil)
	}
}

// requestDHCP is requestForUnit, but does nothing while a node whose kernel may answer for VIPs that are not its own does so for an address that is leased for u, and this
// one has not its macvlan yet: two nodes must not have one MAC (docs/why.md, "DHCP identity").
func (m *unitPlanner) requestDHCP(u *unit) {
	for _, s := range u.services {
		for _, a := range s.addrs {
			if a.client == nil || slices.ContainsFunc(m.Macvlans, func(x vip.Macvlan) bool { return x.Name == a.client.link }) {
				continue
			}
			onParent := vip.Address{Addr: a.Addr, Link: m.self.Info.LinkFor(s.Interface)}
			if m.checks.formerOwnersAnswer(onParent, a.client.mac) {
				m.checks.addHeldBack(s, onParent)
				return
			}
		}
	}
	m.dhcp.requestForUnit(u)
}

// A progress is how many of the addresses of a Service are bound on this node, and what is in
// the way of others.
type progress struct {
	bound   []string      // addresses, each with its link
	inUse   []string      // addresses that other hosts have, each with what to do about it
	ingress []vip.Ingress // for the status
}

// announce binds and announces the addresses of s on this node, which owns it (see
// bindAddress), adds its mappings, their Events once an address is bound, sets its verdict and
// status (setVerdictAndStatus), and defends the addresses that are bound. While handingOver it
// leaves status, mappings and their Events to the successor. It reports a link on which this node is
// unheard. If externalTrafficPolicy is Local
// without svc_election it adds the Event LocalNoElection.
func (m *unitPlanner) announce(s *service, handingOver bool) {
	if s.ignoresEndpoints {
		m.addEvent(s, vip.LocalNoElection, "externalTrafficPolicy is Local, which needs svc_election=true: node "+m.Self+" owns all VIPs, whether it has an endpoint of this Service or not", 0)
	}
	var c progress
	ready := !s.waitsForKubeProxy || m.kubeProxyServes(s)
	for _, a := range s.addrs {
		m.bindAddress(s, a, ready, &c)
	}
	m.mappings.addMappings(s, !handingOver)
	if len(c.bound) > 0 && !handingOver {
		m.mappings.addEvents(s)
		c.ingress = append(c.ingress, m.mappings.externalIngress(s)...)
	}
	s.verdict.AnnouncedHere = len(c.bound) > 0
	m.setVerdictAndStatus(s, handingOver, &c)
	m.checks.reportUnheard(s)
	for _, a := range s.addrs {
		if m.isBound(a.Address) {
			m.checks.defend(s, a.Address)
		}
	}
}

// bindAddress adds one address of s to the Plan, to be bound and announced (while it is being handed over only listened for), unless something keeps
// this node from that; its route, if the owner advertises, and its entry in c follow once the
// kernel has it. It does not add an address whose link is down, or whose pool is not for this node (an Event, unless s moves), one of IPv6 on whose link IPv6 is
// disabled (the same), or one that is leased by DHCP and mayBind is false.
//
// If it is not bound yet, it also waits for kube-proxy to serve s (ready), until no node that has lost its claims answers for it
// (formerOwnersAnswer), or, if it is new
// and vip_skipdad is false, for a probe to find it free of those and all others; hosts that have it, and are no nodes, go to c.inUse, what waits for such a node for long to s.heldBack. One that is bound, and in
// no network of its link, is an Event, unless routers learn of it by BGP.
func (m *unitPlanner) bindAddress(s *service, a address, ready bool, c *progress) {
	link := a.Link
	if a.client != nil {
		link = m.self.Info.LinkFor(s.Interface)
	}
	fault := linkFault(&m.self.Info, link)
	if a.client == nil { // a macvlan has its own sysctl
		fault = cmp.Or(fault, m.self.whyNoIPv6(a.Addr, link))
	}
	if fault != "" {
		if s.unit.target == nil { // else the Event about the move is enough
			m.addEvent(s, vip.NoEligibleNode, fmt.Sprintf("node %s owns %s, but %s", m.Self, a.Addr, fault), 0)
		}
		return
	}
	if a.client != nil && !m.dhcp.mayBind(s, a.Addr) {
		return
	}
	bound := m.isBound(a.Address)
	if h, ok := m.HandingOver[s.unit.lease]; ok && m.successorHeard(a.Address, h) {
		m.out.Announcements = append(m.out.Announcements, vip.Announcement{Addr: a.Addr, Link: a.Link, ListenOnly: true})
		return // it has no answer, but was carried out
	}
	if why := m.PortsNotLimited[vip.FamilyOf(a.Addr)]; m.LimitPorts && why != "" && !bound && !s.AllPorts && !s.localDelivery {
		m.addEvent(s, vip.NoEligibleNode, fmt.Sprintf("node %s owns %s, but does not bind it, since nftables does not limit its ports (enable_service_security): %s", m.Self, a.Addr, why), 0)
	}
	if !ready && !bound {
		return // kube-proxy here would drop what the node attracts
	}
	switch probed := a.New && m.ProbeNew; {
	case bound:
	case !probed && a.client == nil: // of a leased one the macvlan waits (requestDHCP)
		if m.checks.formerOwnersAnswer(a.Address, "") {
			m.checks.addHeldBack(s, a.Address)
			return
		}
	case probed:
		if free, others := m.checks.probe(a.Address); !free {
			m.checks.addHeldBack(s, a.Address)
			if len(others) > 0 {
				c.inUse = append(c.inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free",
					a.Addr, a.Link, strings.Join(others, ", ")))
			}
			return
		}
	}
	m.wantAddress(a.Address, m.handingOver(s.unit))
	if !bound {
		return
	}
	if s.ownerAdvertises {
		m.routes.addRoute(s, a.Addr)
	}
	if a.offLink && !s.ownerAdvertises && !s.everyNodeAdvertises && !s.localDelivery {
		m.addEvent(s, vip.AddressOffLink, fmt.Sprintf("%s is in none of the networks that node %s has on %s: hosts there ask for it by ARP or NDP only if they have a route to it over that link", a.Addr, m.Self, a.Link), 0)
	}
	c.bound = append(c.bound, a.Addr.String()+" on "+a.Link)
	c.ingress = append(c.ingress, m.ingress(s, a.Addr))
}

// setVerdictAndStatus sets the verdict of s, which this node owns and binds, to the first of:
// AddressInUse (with an Event), FormerOwnerAnswers (the same), DHCPFailed or DHCPPending, VIPAnnounced with what is bound so
// far; if all is bound, VIPAnnounced with an Event. What DHCP clients report wrong is an Event
// in any case.
//
// The status gets the addresses bound. If there are none, a status that Herald wrote is cleared if another host has one and it names none
// that s asks for, or if no DHCP lease is left of a Service that has nothing else. It
// is left alone while s is handed over, or the claim on it is not written yet (Claim.Until), if s has no status, or while a DHCP client has no
// answer yet and Herald wrote a status; and in all other cases. The conditions say what is bound, or why nothing is; they are left
// alone while s is handed over, or nothing is bound and nothing is in the way.
func (m *unitPlanner) setVerdictAndStatus(s *service, handingOver bool, c *progress) {
	missing, problems, undecided := m.dhcp.missingLeases(s)
	switch {
	case len(c.inUse) > 0 && len(c.ingress) == 0 && s.statusOurs && !handingOver && !s.showsWanted(): // it asked for other addresses before
		m.clearStatus(s)
	case handingOver || !s.hasStatus || undecided && len(s.Ingress) > 0 && s.statusOurs:
		// While the client asks whether a lease is still good the status stays.
	case len(c.ingress) > 0:
		m.writeStatus(s, m.Self, c.ingress, m.dhcp.leasesToRecord(s, c.ingress))
	case missing > 0 && missing == len(s.dhcpFamilies) && len(s.addrs) == 0 && s.statusOurs:
		m.clearStatus(s)
	}
	problem := ""
	if len(problems) > 0 {
		problem = fmt.Sprintf("node %s: %s", m.Self, strings.Join(problems, "; "))
		m.addEvent(s, vip.DHCPFailed, problem, 0)
	}
	switch {
	case len(c.inUse) > 0:
		m.setProblem(s, vip.AddressInUse, strings.Join(c.inUse, "; "))
	case len(s.heldBack) > 0:
		m.setProblem(s, vip.FormerOwnerAnswers, m.checks.describeHeldBack(s))
	case missing > 0 && problem != "":
		s.setVerdict(vip.DHCPFailed, problem)
	case missing > 0:
		s.setVerdict(vip.DHCPPending, fmt.Sprintf("node %s asks for an address on %s", m.Self, s.client.link))
	case len(c.bound) < len(s.addrs):
		s.setVerdict(vip.VIPAnnounced, fmt.Sprintf("node %s owns it; bound so far: %d of %d addresses", m.Self, len(c.bound), len(s.addrs)))
	default:
		s.setVerdict(vip.VIPAnnounced, "node "+m.Self+" announces "+strings.Join(c.bound, ", "))
		m.addAnnouncedEvent(s)
	}
	switch {
	case handingOver: // the successor's to write
	case len(c.bound) > 0:
		s.report(vip.ConditionTrue, s.verdict.Reason, s.verdict.Message)
	case len(c.inUse) > 0, len(s.heldBack) > 0, missing > 0 && problem != "":
		s.report(vip.ConditionFalse, s.verdict.Reason, s.verdict.Message)
	}
}

// addAnnouncedEvent adds the Event that this node announces s, with the message of its
// verdict: VIPMoved, with the cause, if the claim names another node as previous holder, else VIPAnnounced.
// Each time that the claim was acquired is another occurrence: transitions do not tell, since a lease that was deleted
// begins with none again.
func (p *pass) addAnnouncedEvent(s *service) {
	claim := s.unit.claim
	occurrence := int64(claim.Transitions)
	if !claim.AcquiredAt.IsZero() {
		occurrence = claim.AcquiredAt.UnixMicro()
	}
	if from := claim.PreviousHolder; from != "" && from != p.Self {
		why := ""
		if claim.Cause != "" {
			why = " (" + claim.Cause + ")"
		}
		p.addEvent(s, vip.VIPMoved, "moved from node "+from+why+": "+s.verdict.Message, occurrence)
	} else {
		p.addEvent(s, vip.VIPAnnounced, s.verdict.Message, occurrence)
	}
}

// maxStatusPorts is how many entries for ports the status of a Service has. With 7000 ports and 16 addresses it would be larger than the
// API server takes.
const maxStatusPorts = 1024

// ingress returns the entry of a in the status of s: all ports of s, none if these would be more than maxStatusPorts for all addresses
// (Kubernetes knows all or none), and its IPMode or else that of the options.
func (p *pass) ingress(s *service, a netip.Addr) vip.Ingress {
	i := vip.Ingress{Addr: a, IPMode: cmp.Or(s.IPMode, p.IPMode), Ports: s.Ports}
	if len(s.Ports)*len(s.addrs) > maxStatusPorts {
		i.Ports = nil
	}
	return i
}

// reportUnmanaged adds an Event for each VIP that is bound on this node, though Herald did not bind
// it and this node does not hold the unit of its Service. Nothing is removed.
func (m *unitPlanner) reportUnmanaged(units []*unit) {
	for _, x := range m.Unmanaged {
		for _, u := range units {
			for _, s := range u.services {
				if u.claim.Holder != m.Self && s.hasAddress(x.Addr) {
					m.addEvent(s, vip.UnmanagedAddress, fmt.Sprintf("node %s has %s on %s, but Herald did not put it there and node %s does not own it; remove it with: ip addr del %s dev %s",
						m.Self, x.Addr, x.Link, m.Self, x.Prefix(), x.Link), 0)
				}
			}
		}
	}
}

// showsWanted reports whether the status of s names any of s.addrs.
func (s *service) showsWanted() bool {
	return slices.ContainsFunc(s.addrs, func(a address) bool { return s.statusHas(a.Addr) })
}

// hasAddress reports whether a is in s.addrs, the addresses that s asked for, or has leased,
// and may have.
func (s *service) hasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(s.addrs, func(x address) bool { return x.Addr == a })
}
