package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// An actions is the last stage: what this node does about units with known targets.
type actions struct {
	*draft
	dhcp     *dhcp
	checks   *addressChecks
	routes   *routes
	mappings *mappings
}

// A draft is the Plan as far as it is made.
type draft struct {
	*reporter
	out    vip.Plan
	wanted map[netip.Addr]bool // the addresses in out.Addresses
}

// act plans for all that a has admitted.
func act(a *admission) *actions {
	d := &draft{reporter: a.reporter, wanted: make(map[netip.Addr]bool, len(a.Bound))}
	d.out.Pools, d.out.Assignments, d.out.Owners = a.pools, a.assignments, a.owners
	m := &actions{draft: d, dhcp: a.dhcp, checks: a.checks, mappings: newMappings(d),
		routes: &routes{d, make(map[netip.Prefix]bool)}}
	for _, s := range a.expectingEndpoints {
		if u := unitOfOne(a.reporter, s); u != nil { // whether it may share is not known yet
			m.checks.probeEarly(u)
		}
	}
	former := newFormerOwners(d)
	for _, u := range a.units {
		m.plan(u)
		former.plan(u)
	}
	m.checks.watchNeighbors(a.units)
	for _, s := range a.withoutEndpoints {
		m.showAllocated(s, vip.NoEndpoints, s.noEndpoints)
	}
	m.routes.advertiseFromEveryNode(a.accepted)
	m.routes.addAggregates()
	m.balance(a.units)
	(&egress{draft: d}).plan(a.accepted)
	m.reportUnmanaged(a.units)
	m.mappings.keepUntilClosed(a.units)
	m.limitPorts(a.accepted)
	m.dhcp.releaseUnrequested(a.all)
	m.clearWithdrawn(a.withdrawn)
	return m
}

// wantAddress plans a, with an Announcement, unless it is on any link.
func (p *draft) wantAddress(a vip.Address, listenOnly bool) {
	if p.wanted[a.Addr] {
		return
	}
	p.wanted[a.Addr] = true
	p.out.Addresses = append(p.out.Addresses, a)
	p.out.Announcements = append(p.out.Announcements, vip.Announcement{Addr: a.Addr, Link: a.Link,
		ListenOnly: listenOnly})
}

// askKubeProxy adds a HealthCheck; true if served, or long silent.
func (p *draft) askKubeProxy(s *service) bool {
	if !s.healthChecked {
		s.healthChecked = true
		p.out.HealthChecks = append(p.out.HealthChecks, vip.HealthCheck{Service: s.Key, Port: s.HealthCheckNodePort,
			Hosts: p.addresses})
	}
	return p.HealthChecked[s.Key]
}

// finish adds what is written about all, and returns the Plan.
func (m *actions) finish(all []*service) vip.Plan {
	m.out.EventsPending = !m.Tenure.RenewalLateSince.IsZero()
	m.out.Verdicts = make([]vip.Verdict, 0, len(all))
	for _, s := range all {
		m.emit(s)
		if s.LoadBalancer {
			m.out.Verdicts = append(m.out.Verdicts, s.verdict)
		}
	}
	slices.SortFunc(m.out.Verdicts, func(a, b vip.Verdict) int { return a.Service.Compare(b.Service) })
	m.out.Events, m.out.ReplanAfter, m.out.AddressChecks = m.events, m.again, m.checks.list
	m.out.Macvlans, m.out.DHCPRequests = m.dhcp.macvlans, m.dhcp.requests
	return m.out
}

// plan adds what this node does about u, with verdicts.
func (m *actions) plan(u *unit) {
	holder := u.claim.Holder
	switch {
	case u.claim.Foreign && holder != "":
		m.wantOwner(u, "")
		for _, s := range u.services {
			m.mappings.addMappings(s, false)
			m.reject(s, vip.HeldByOtherAnnouncer,
				fmt.Sprintf("the lease %s is held and renewed by another announcer (%s); Herald takes over when that "+
					"stops", u.lease, holder))
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
			s.setVerdict(vip.NodeLeaseNotHeld,
				"this node could not renew its node lease in time and announces nothing until it can")
		}
	default:
		m.keepOrHandOver(u)
	}
}

// rejectUnit rejects u without eligible node; statuses stay if only endpoints are missing.
func (m *actions) rejectUnit(u *unit) {
	why := m.whyNoNode(&u.requirements)
	elsewhere := u.requirements
	elsewhere.endpoint = false
	wantsEndpoint := len(m.eligible(&elsewhere)) > 0
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

// wantOwner wants u, with its records, at a node; "": at none.
func (m *actions) wantOwner(u *unit, node string) {
	cause := ""
	if u.target != nil && node == u.target.Name {
		cause = u.cause
	} else if node == "" && u.claim.Holder == m.Self {
		cause = m.whyNoNode(&u.requirements)
	}
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		m.out.Owners = append(m.out.Owners, vip.Owner{Unit: k, Node: node, Cause: cause})
	}
}

// planFree plans for a free unit with a target.
func (m *actions) planFree(u *unit) {
	m.wantOwner(u, u.target.Name)
	m.checks.probeEarly(u)
	for _, s := range u.services {
		m.mappings.addMappings(s, false)
		s.setVerdict(vip.VIPClaiming, "node "+u.target.Name+" is about to claim it")
	}
	m.keepUntilHeard(u)
}

// planHeldElsewhere plans for another node's unit; its records follow.
func (m *actions) planHeldElsewhere(u *unit) {
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
		m.checks.verify(s, m.wanted)
	}
}

// keepUntilHeard keeps addresses until the successor is heard, and routes as long.
func (m *actions) keepUntilHeard(u *unit) {
	if m.self == nil || !m.Tenure.Holds(m.Now) {
		return
	}
	for _, k := range append([]vip.Key{u.lease}, u.records...) {
		h := m.HandingOver[k]
		if !m.Now.Before(h.Until) {
			continue
		}
		for _, s := range u.services {
			for _, a := range s.addrs {
				if s.ownerAdvertises {
					m.routes.addRoute(s, a.Addr).Drain = true // nothing says when routers have heard of the successor
					m.replanAfter(h.Until.Sub(m.Now))
				}
				if s.bindsAddresses && !m.successorHeard(a.Address, h) && linkFault(&m.self.Info, a.Link) == "" &&
					m.isBound(a.Address) {
					a.Until = h.Until
					m.wantAddress(a.Address, true)
				}
			}
		}
	}
}

// successorHeard reports whether a was announced since, by a node, or any host if MACs lack.
func (m *actions) successorHeard(a vip.Address, h vip.HandingOver) bool {
	x, ok := m.Heard[a.Addr]
	return ok && !x.At.Before(h.Since) && (!m.checks.complete || m.checks.nodeByMAC[x.MAC] != "")
}

// keepOrHandOver announces u here, even while handed over, if possible.
func (m *actions) keepOrHandOver(u *unit) {
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
	// Then statuses are the successor's to write, and ports its to keep open.
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
			m.addEvent(s, vip.PortNotMapped,
				"the VIP is on no link of this node's, where gateways could be asked: it is announced by "+
					m.routes.protocols()+" only", 0)
		}
		m.routes.advertise(s, handingOver)
	}
}

// withoutEndpointAtOwner returns why the owner does not serve s (policy Local), or "".
func (m *actions) withoutEndpointAtOwner(s *service) string {
	u := s.unit
	owner := m.members[u.claim.Holder]
	if !s.ownerNeedsEndpoint || owner == nil || containsSorted(s.Endpoints.Local(), owner.Name) ||
		whyIneligible(&u.requirements, owner) != "" {
		return ""
	}
	return "node " + owner.Name + " carries the Services that share its address, or its lease, and this one has " +
		s.noEndpointThere + ": give it an address and lease of its own, or an endpoint where they have one"
}

func (m *actions) reportWithoutEndpoint(s *service, why string) {
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

// requestDHCP asks DHCP servers, once no former owner has the MAC (docs/why.md, "DHCP identity").
func (m *actions) requestDHCP(u *unit) {
	for _, s := range u.services {
		for _, a := range s.addrs {
			if a.client == nil || slices.ContainsFunc(m.Macvlans, func(x vip.Macvlan) bool { return x.Name == a.client.link }) {
				continue
			}
			onParent := vip.Address{Addr: a.Addr, Link: m.self.Info.LinkFor(s.Interface)}
			if m.checks.askFormerOwners(onParent, a.client.mac) {
				m.checks.addHeldBack(s, onParent)
				return
			}
		}
	}
	var done []*dhcpClient
	for _, s := range u.services {
		if s.client != nil && !slices.Contains(done, s.client) {
			done = append(done, s.client)
			m.dhcp.requestClient(s.client)
		}
	}
}

// A progress is how many addresses of a Service are bound here, and what hinders others.
type progress struct {
	bound   []string      // addresses, each with its link
	inUse   []string      // addresses that other hosts have, each with what to do about it
	ingress []vip.Ingress // for the status
}

// announce binds and announces s; while handingOver the rest is the successor's.
func (m *actions) announce(s *service, handingOver bool) {
	if s.Local && s.sharesOwner {
		m.addEvent(s, vip.LocalNoElection,
			"externalTrafficPolicy is Local, which needs svc_election=true: node "+m.Self+" owns all VIPs, whether it "+
				"has an endpoint of this Service or not", 0)
	}
	var c progress
	ready := !s.waitsForKubeProxy || m.askKubeProxy(s)
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

// bindAddress wants an address bound and announced, unless something hinders.
func (m *actions) bindAddress(s *service, a address, ready bool, c *progress) {
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
		m.out.Announcements = append(m.out.Announcements, vip.Announcement{Addr: a.Addr, Link: a.Link,
			ListenOnly: true})
		return // it has no answer, but was carried out
	}
	if why := m.PortsNotLimited[vip.FamilyOf(a.Addr)]; m.LimitPorts && why != "" && !bound && !s.AllPorts &&
		!s.localDelivery {
		m.addEvent(s, vip.NoEligibleNode,
			fmt.Sprintf("node %s owns %s, but does not bind it, since nftables does not limit its ports "+
				"(enable_service_security): %s", m.Self, a.Addr, why), 0)
	}
	if !ready && !bound {
		return // kube-proxy here would drop what the node attracts
	}
	if !bound && m.waitsForOthers(s, a, c) {
		return
	}
	m.wantAddress(a.Address, m.handingOver(s.unit))
	if !bound {
		return
	}
	if s.ownerAdvertises {
		m.routes.addRoute(s, a.Addr)
	}
	if a.offLink && !s.ownerAdvertises && !s.everyNodeAdvertises && !s.localDelivery {
		m.addEvent(s, vip.AddressOffLink,
			fmt.Sprintf("%s is in none of the networks that node %s has on %s: hosts there ask for it by ARP or NDP "+
				"only if they have a route to it over that link", a.Addr, m.Self, a.Link), 0)
	}
	c.bound = append(c.bound, a.Addr.String()+" on "+a.Link)
	c.ingress = append(c.ingress, m.ingress(s, a.Addr))
}

// waitsForOthers reports whether another host has a, or a former owner may.
func (m *actions) waitsForOthers(s *service, a address, c *progress) bool {
	var others []string
	switch probed := a.New && m.ProbeNew; {
	case probed:
		free := false
		if free, others = m.checks.probe(a.Address); free {
			return false
		}
	// of a leased one the macvlan waits (requestDHCP)
	case a.client != nil || !m.checks.askFormerOwners(a.Address, ""):
		return false
	}
	m.checks.addHeldBack(s, a.Address)
	if len(others) > 0 {
		c.inUse = append(c.inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s), so it is not announced: take "+
			"it off that host, or give the Service another address; it is asked again at least once a minute, and "+
			"announced when it is free", a.Addr, a.Link, strings.Join(others, ", ")))
	}
	return true
}

// setVerdictAndStatus sets verdict, conditions and status of s, bound here.
func (m *actions) setVerdictAndStatus(s *service, handingOver bool, c *progress) {
	missing, problems, undecided := m.dhcp.missingLeases(s)
	showsWanted := slices.ContainsFunc(s.addrs, func(a address) bool { return s.statusHas(a.Addr) })
	switch {
	// it asked for other addresses before
	case len(c.inUse) > 0 && len(c.ingress) == 0 && s.statusOurs && !handingOver && !showsWanted:
		m.clearStatus(s)
	case handingOver || !s.hasStatus || undecided && len(s.Ingress) > 0 && s.statusOurs:
		// The status stays while the client asks whether a lease is still good.
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
		s.setVerdict(vip.VIPAnnounced, fmt.Sprintf("node %s owns it; bound so far: %d of %d addresses", m.Self,
			len(c.bound), len(s.addrs)))
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

// addAnnouncedEvent adds VIPMoved if another node had s before, else VIPAnnounced.
func (r *reporter) addAnnouncedEvent(s *service) {
	claim := s.unit.claim
	occurrence := int64(claim.Transitions)
	if !claim.AcquiredAt.IsZero() {
		occurrence = claim.AcquiredAt.UnixMicro()
	}
	if from := claim.PreviousHolder; from != "" && from != r.Self {
		why := ""
		if claim.Cause != "" {
			why = " (" + claim.Cause + ")"
		}
		r.addEvent(s, vip.VIPMoved, "moved from node "+from+why+": "+s.verdict.Message, occurrence)
	} else {
		r.addEvent(s, vip.VIPAnnounced, s.verdict.Message, occurrence)
	}
}

// maxStatusPorts is how many port entries a status has: too many the API server refuses.
const maxStatusPorts = 1024

// ingress returns the status entry of a, with up to maxStatusPorts ports.
func (p *facts) ingress(s *service, a netip.Addr) vip.Ingress {
	i := vip.Ingress{Addr: a, IPMode: cmp.Or(s.IPMode, p.IPMode), Ports: s.Ports}
	if len(s.Ports)*len(s.addrs) > maxStatusPorts {
		i.Ports = nil
	}
	return i
}

// reportUnmanaged adds an Event for each VIP bound by others.
func (m *actions) reportUnmanaged(units []*unit) {
	for _, x := range m.Unmanaged {
		for _, u := range units {
			for _, s := range u.services {
				if u.claim.Holder != m.Self && s.hasAddress(x.Addr) {
					m.addEvent(s, vip.UnmanagedAddress,
						fmt.Sprintf("node %s has %s on %s, but Herald did not put it there and node %s does not own it; remove it with: "+
							"ip addr del %s dev %s", m.Self, x.Addr, x.Link, m.Self, x.Prefix(), x.Link), 0)
				}
			}
		}
	}
}

func (s *service) hasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(s.addrs, func(x address) bool { return x.Addr == a })
}
