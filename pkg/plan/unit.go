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
	*admission
	routes   *routes
	mappings *mappings
}

// act plans for all that a has admitted.
func act(a *admission) *actions {
	m := &actions{a, &routes{a.draft, make(map[netip.Prefix]bool)}, newMappings(a.draft)}
	for _, s := range m.withoutEndpoints {
		if m.ageWithoutEndpoints(s) < oldServiceAge && len(s.Ingress) == 0 { // it is new, and was never announced
			m.checks.probeEarly(m.unitOfOne(s)) // whether it may share is not known yet
		}
		m.keepOwner(s)
	}
	former := newFormerOwners(m.draft)
	for _, u := range m.units {
		m.plan(u)
		former.plan(u)
	}
	m.checks.watchNeighbors(m.units)
	for _, s := range m.withoutEndpoints {
		m.showAllocated(s, vip.NoEndpoints, s.noEndpoints)
	}
	m.routes.advertiseFromEveryNode(m.accepted)
	for _, s := range m.accepted {
		switch {
		case !s.everyNodeAdvertises || s.hasVerdict():
		case m.routes.isUnserved(s):
			m.reportUnserved(s, "no node can serve both this Service and those that share "+s.unserved.String()+
				": give it an address of its own, or an endpoint where they have one")
		case !m.routes.reportUnowned(s):
			m.rejectWithoutNode(m.routeRequirements(s), s)
		}
	}
	m.routes.addAggregates()
	m.balance()
	(&egress{draft: m.draft}).plan(m.accepted)
	m.reportUnmanaged()
	m.mappings.keepUntilClosed(m.units)
	m.limitPorts()
	m.dhcp.releaseUnrequested(m.all)
	m.clearWithdrawn()
	return m
}

// wantAddress plans a, with an Announcement, unless it is on any link; its tables are looked at.
func (p *draft) wantAddress(a vip.Address, listenOnly bool) {
	if p.wanted[a.Addr] {
		return
	}
	p.wanted[a.Addr] = true
	p.replanAfter(lookAtTables)
	p.out.Addresses = append(p.out.Addresses, a)
	p.out.Announcements = append(p.out.Announcements, vip.Announcement{Addr: a.Addr, Link: a.Link,
		ListenOnly: listenOnly})
}

// askKubeProxy adds a HealthCheck; true if served, or long silent, or if the endpoints here end: they are no longer
// counted in its answer, though served.
func (p *draft) askKubeProxy(s *service) bool {
	if !containsSorted(s.Endpoints.Ready, p.Self) && containsSorted(s.Endpoints.Terminating, p.Self) {
		return true
	}
	if !s.healthChecked {
		s.healthChecked = true
		p.out.HealthChecks = append(p.out.HealthChecks, vip.HealthCheck{Service: s.Key, Port: s.HealthCheckNodePort,
			Hosts: p.addresses})
	}
	return p.HealthChecked[s.Key]
}

// finish adds what is written about all, and returns the Plan.
func (m *actions) finish() vip.Plan {
	m.out.EventsPending = !m.Tenure.RenewalLateSince.IsZero()
	m.out.Verdicts = make([]vip.Verdict, 0, len(m.all))
	for _, s := range m.all {
		m.emit(s)
		if s.LoadBalancer {
			m.out.Verdicts = append(m.out.Verdicts, s.verdict)
		}
	}
	slices.SortFunc(m.out.Verdicts, func(a, b vip.Verdict) int { return a.Service.Compare(b.Service) })
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
		m.rejectWithoutNode(&u.requirements, u.services...)
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

// rejectWithoutNode rejects services without eligible node; statuses stay if only endpoints are missing.
func (m *actions) rejectWithoutNode(need *requirements, services ...*service) {
	why := m.whyNoNode(need)
	elsewhere := *need
	elsewhere.endpoint = false
	wantsEndpoint := len(m.eligible(&elsewhere)) > 0
	for _, s := range services {
		switch {
		case s.everyNodeAdvertises && !need.routes: // reportUnowned says it
		case wantsEndpoint && s.hasStatus && len(s.addrs) > 0:
			m.showAllocated(s, vip.NoEligibleNode, why)
		default:
			m.reject(s, vip.NoEligibleNode, why)
		}
	}
}

// wantOwner wants u, with all its leases, at a node; "": at none.
func (m *actions) wantOwner(u *unit, node string) {
	cause := ""
	if u.target != nil && node == u.target.Name {
		cause = u.cause
	} else if node == "" && u.claim.Holder == m.Self {
		cause = m.whyNoNode(&u.requirements)
	}
	for _, k := range u.leases {
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

// planHeldElsewhere plans for another node's unit; its other leases follow.
func (m *actions) planHeldElsewhere(u *unit) {
	m.wantOwner(u, u.claim.Holder)
	m.out.Owners[len(m.out.Owners)-len(u.leases)].Stays = true // whatever becomes of its owner, this is no choice
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

// keepUntilHeard keeps addresses until the successor is heard, and routes as long.
func (m *actions) keepUntilHeard(u *unit) {
	if m.self == nil || !m.Tenure.Holds(m.Now) {
		return
	}
	if m.HandingOver[u.lease].InDoubt { // maybe nobody else has the macvlan
		m.requestDHCP(u)
	}
	for _, k := range u.leases {
		h := m.HandingOver[k]
		if !m.Now.Before(h.Until) {
			continue
		}
		for _, s := range u.services {
			for _, a := range s.addrs {
				if s.ownerAdvertises {
					m.routes.addRoute(s, a.Addr).Drain = !h.InDoubt // nothing says when routers have heard of the successor
					m.replanAfter(h.Until.Sub(m.Now))
				}
				up := a.client != nil || linkFault(&m.self.Info, a.Link) == "" // nobody is told of macvlans
				if up && s.bindsAddresses && !m.successorHeard(a.Address, h) && m.isBound(a.Address) {
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

// keepOrHandOver announces u here, if possible.
func (m *actions) keepOrHandOver(u *unit) {
	switch {
	case u.target != nil:
		m.wantOwner(u, u.target.Name)
	case m.self.cutOffOnly(&u.requirements), len(m.eligible(&u.requirements)) > 0, // it has begun, and is heard soon
		u.services[0].keptWithoutEligible && (m.self.refusal == "" || m.self.refusal == isolatedRefusal):
		m.wantOwner(u, m.Self)
	default:
		m.wantOwner(u, "")
		m.rejectWithoutNode(&u.requirements, u.services...)
		return
	}
	m.requestDHCP(u)
	for _, s := range u.services {
		if why := m.withoutEndpointAtOwner(s); why != "" {
			m.mappings.addMappings(s, false)
			m.reportUnserved(s, why)
			continue
		}
		if s.bindsAddresses {
			m.announce(s)
			continue
		}
		if s.Forward != nil {
			m.addEvent(s, vip.PortNotMapped,
				"the VIP is on no link of this node's, where gateways could be asked: it is announced by "+
					m.routes.protocols()+" only", 0)
		}
		m.routes.advertise(s)
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

// reportUnserved says why s is not announced, though its address is; its status goes on naming its addresses.
func (m *actions) reportUnserved(s *service, why string) {
	if s.setVerdict(vip.NoEligibleNode, why); !m.responsible(s) {
		return
	}
	m.fail(s, vip.NoEligibleNode, why)
	if s.statusOurs && s.hasStatus {
		var ingress []vip.Ingress
		for _, a := range s.addrs {
			if s.statusHas(a.Addr) {
				ingress = append(ingress, m.ingress(s, a.Addr))
			}
		}
		m.writeStatus(s, "", ingress, m.dhcp.leasesToRecord(s, ingress))
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
	faults  []string      // why this node can't bind addresses
	ingress []vip.Ingress // for the status, once one is bound: also what it names already
}

// announce binds and announces s.
func (m *actions) announce(s *service) {
	if s.Local && s.sharesOwner {
		m.addEvent(s, vip.LocalNoElection,
			"externalTrafficPolicy is Local, which needs svc_election=true: node "+m.Self+" owns all VIPs, whether it "+
				"has an endpoint of this Service or not", 0)
	}
	var c progress
	ready := !s.waitsForKubeProxy || m.askKubeProxy(s)
	for _, a := range s.addrs {
		bound, faults := len(c.bound), len(c.faults)
		m.bindAddress(s, a, ready, &c)
		if len(c.bound) > bound || len(c.faults) == faults && s.statusHas(a.Addr) && !a.expired {
			c.ingress = append(c.ingress, m.ingress(s, a.Addr))
		}
	}
	m.mappings.addMappings(s, true)
	if len(c.bound) > 0 {
		m.mappings.addEvents(s)
		c.ingress = append(c.ingress, m.mappings.externalIngress(s)...)
	}
	s.verdict.AnnouncedHere = len(c.bound) > 0
	switch why := strings.Join(c.faults, "; "); {
	case why != "" && len(c.bound) == 0:
		m.reportUnserved(s, why)
		return
	case why != "":
		m.addEvent(s, vip.NoEligibleNode, why, 0)
	}
	m.setVerdictAndStatus(s, &c)
	m.checks.reportUnheard(s)
	for _, a := range s.addrs {
		if m.isBound(a.Address) {
			m.checks.defend(s, a.Address)
		}
	}
}

// bindAddress wants an address bound and announced, unless something hinders.
func (m *actions) bindAddress(s *service, a address, ready bool, c *progress) {
	fault := cmp.Or(linkFault(&m.self.Info, a.Link), m.self.whyNoIPv6(a.Addr, a.Link))
	if a.client != nil { // a macvlan has its own sysctl
		fault = linkFault(&m.self.Info, m.self.Info.LinkFor(s.Interface))
	}
	if fault != "" {
		if s.unit.target == nil { // else the Event about the move is enough
			c.faults = append(c.faults, fmt.Sprintf("node %s owns %s, but %s", m.Self, a.Addr, fault))
		}
		return
	}
	if a.client != nil && (a.expired || !m.dhcp.hasMacvlan(s)) {
		return
	}
	bound := m.isBound(a.Address)
	if why := m.PortsNotLimited[vip.FamilyOf(a.Addr)]; m.LimitPorts && why != "" && !bound && !s.AllPorts &&
		!s.localDelivery {
		c.faults = append(c.faults, fmt.Sprintf("node %s owns %s, but does not bind it, since nftables does not limit its "+
			"ports (enable_service_security): %s", m.Self, a.Addr, why))
	}
	if !bound && (!ready || m.waitsForOthers(s, a, c)) { // not ready: kube-proxy would drop what the node attracts
		return
	}
	m.wantAddress(a.Address, false)
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
		if s.IsGiven(a.Addr) {
			s.inUse = append(s.inUse, a.Addr)
		}
		c.inUse = append(c.inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s), so it is not announced: take "+
			"it off that host, or give the Service another address; it is asked again at least once a minute, and "+
			"announced when it is free", a.Addr, a.Link, strings.Join(others, ", ")))
	}
	return true
}

// setVerdictAndStatus sets verdict, conditions and status of s, bound here.
func (m *actions) setVerdictAndStatus(s *service, c *progress) {
	missing, problems, undecided := m.dhcp.missingLeases(s)
	switch {
	// it asked for other addresses before
	case len(c.inUse) > 0 && len(c.ingress) == 0 && s.statusOurs:
		m.clearStatus(s)
	case !s.hasStatus || undecided && len(s.Ingress) > 0 && s.statusOurs:
		// The status stays while the client asks whether a lease is still good.
	case len(c.bound) > 0:
		m.writeStatus(s, m.Self, c.ingress, m.dhcp.leasesToRecord(s, c.ingress))
	case missing > 0 && missing == len(s.dhcpFamilies) && s.statusOurs &&
		!slices.ContainsFunc(s.addrs, func(a address) bool { return !a.expired }):
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
	case len(c.bound) > 0:
		s.report(vip.ConditionTrue, s.verdict.Reason, s.verdict.Message)
	case len(c.inUse) > 0, len(s.heldBack) > 0, missing > 0 && problem != "":
		s.report(vip.ConditionFalse, s.verdict.Reason, s.verdict.Message)
	}
}

// addAnnouncedEvent adds VIPMoved if s moved here from another node, else, or for an address given since, VIPAnnounced.
func (p *draft) addAnnouncedEvent(s *service) {
	claim, since := s.unit.claim, s.unit.claim.AcquiredAt
	occurrence := int64(claim.Transitions)
	if !since.IsZero() {
		occurrence = since.UnixMicro()
	}
	if from := claim.PreviousHolder; from != "" && from != p.Self && (since.IsZero() || !s.Created.After(since)) {
		if claim.Cause != "" {
			from += " (" + claim.Cause + ")"
		}
		p.addEvent(s, vip.VIPMoved, "moved from node "+from+" to node "+p.Self, occurrence)
		if !slices.ContainsFunc(s.addrs, func(a address) bool { return !s.statusHas(a.Addr) }) {
			return
		}
	}
	p.addEvent(s, vip.VIPAnnounced, s.verdict.Message, occurrence)
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
func (m *actions) reportUnmanaged() {
	here := make(map[netip.Addr][]vip.Address)
	for _, x := range m.Unmanaged {
		here[x.Addr] = append(here[x.Addr], x)
	}
	if m.self != nil {
		for _, l := range m.self.Info.Links { // with the network's mask it counts as the node's own
			for _, p := range l.Prefixes {
				here[p.Addr()] = append(here[p.Addr()], vip.Address{Addr: p.Addr(), Bits: p.Bits(), Link: l.Name})
			}
		}
	}
	for _, u := range m.units {
		if u.claim.Holder == m.Self {
			continue
		}
		for _, s := range u.services {
			for _, a := range s.addrs {
				for _, x := range here[a.Addr] {
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
