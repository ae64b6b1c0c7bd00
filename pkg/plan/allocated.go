package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// showAllocated sets the verdict of a Service that no node announces, since it has no endpoint, or
// none on a node that may announce it, and, if this node is responsible for it, writes its status:
// those of its addresses that a node could announce, and no node as vipHost (docs/why.md, "Endpoints"). reason
// and message become its verdict and, on the responsible node, an Event; while the Service is
// younger than 3 s (newServiceAge) its status is left alone, and there is no Event NoEndpoints. An
// address that is new is named once a probe has found it free; if another host has it that becomes
// the verdict AddressInUse, with an Event. If no address can be named, what Herald wrote is
// cleared, unless s keepsStatus, also when all Heralds stop.
func (m *unitPlanner) showAllocated(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	s.unit = nil // nobody announces it: who is responsible does not follow from its lease
	if !m.responsible(s) {
		return
	}
	age := m.ageWithoutEndpoints(s)
	if age >= newServiceAge || reason != vip.NoEndpoints {
		m.addEvent(s, reason, message, 0)
	}
	if age < newServiceAge {
		m.replanAfter(newServiceAge - age)
		return
	}
	able := m.ableWithEndpoint(s)
	var ingress []vip.Ingress
	var inUse []string
	for _, a := range s.addrs {
		switch ok, others := m.couldAnnounce(s, a, able); {
		case ok:
			ingress = append(ingress, m.ingress(s, a.Addr))
		case len(others) > 0:
			inUse = append(inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s): take it off that host, or give the Service another address", a.Addr, a.Link, strings.Join(others, ", ")))
		}
	}
	switch {
	case len(ingress) > 0 && s.hasStatus:
		m.writeStatus(s, "", ingress, nil)
	case s.statusOurs && !s.keepsStatus():
		m.clearStatus(s)
	case len(able) == 0:
		m.keepStatusWithoutFinalizer(s)
	}
	if len(inUse) > 0 {
		m.setProblem(s, vip.AddressInUse, strings.Join(inUse, "; "))
	}
	s.report(vip.ConditionFalse, s.verdict.Reason, s.verdict.Message)
}

// couldAnnounce reports whether any node could announce a, as those that are able can, and a is free: the
// status of s names it, or, if VIPs are bound, a probe of this node has found that no other host has it; by routes
// alone, a node is connected (see there). others are the MACs of hosts that have it.
func (m *unitPlanner) couldAnnounce(s *service, a address, able []*member) (ok bool, others []string) {
	switch {
	case len(able) == 0:
		return false, nil
	case s.statusHas(a.Addr):
		return true, nil
	case !s.bindsAddresses:
		return slices.ContainsFunc(able, func(n *member) bool { return m.connected(s, n, a.Addr) }), nil
	case !m.ProbeNew:
		return true, nil
	case m.self == nil || linkFault(&m.self.Info, a.Link) != "": // it can't ask
		return slices.ContainsFunc(able, func(n *member) bool { return n != m.self }), nil
	}
	return m.checks.probe(a.Address)
}

// ableWithEndpoint returns the alive nodes that could announce s if it had an endpoint there. It also sets
// what follows for the addresses of s if it is announced, alone, from this node (completeAddress).
func (p *pass) ableWithEndpoint(s *service) []*member {
	need := *p.routeRequirements(s)
	for _, u := range groupIntoUnits(p, []*service{s}) {
		need = u.requirements
	}
	s.unit = nil
	need.endpoint = false
	return slices.DeleteFunc(slices.Clone(p.alive), func(n *member) bool { return whyIneligible(&need, n) != "" })
}

// ageWithoutEndpoints returns the age of s for what is expected of its endpoints: one whose status
// Herald wrote, or that was created in the future, is old.
func (p *pass) ageWithoutEndpoints(s *service) time.Duration {
	age := p.Now.Sub(s.Created)
	if age < 0 || s.statusOurs {
		return oldServiceAge
	}
	return age
}
