package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// keepOwner has the node of s keep it, without an endpoint, if it could: connections go on once it has some.
func (m *actions) keepOwner(s *service) {
	if s.shares || !m.leaseHeld(s) || !s.lacksEndpoints() {
		return
	}
	o, need := vip.Owner{Unit: s.lease, Node: m.Claims[s.lease].Holder}, m.completeAlone(s)
	n := m.members[o.Node]
	if o.Stays = n != nil && n.Alive && whyIneligible(&need, n) == ""; !o.Stays {
		o.Node = ""
	}
	m.out.Owners = append(m.out.Owners, o)
}

// showAllocated reports s, without an endpoint, and its possible addresses (docs/why.md, "Endpoints").
func (m *actions) showAllocated(s *service, reason vip.Reason, message string) {
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
	need := m.completeAlone(s)
	able := m.eligible(&need)
	var ingress []vip.Ingress
	var inUse []string
	for _, a := range s.addrs {
		switch ok, others := m.couldAnnounce(s, a, able); {
		case ok:
			ingress = append(ingress, m.ingress(s, a.Addr))
		case len(others) > 0:
			inUse = append(inUse, fmt.Sprintf("%s is in use by another host on %s (MAC %s): take it off that host, or "+
				"give the Service another address", a.Addr, a.Link, strings.Join(others, ", ")))
		}
	}
	switch {
	case len(ingress) > 0 && s.hasStatus:
		m.writeStatus(s, "", ingress, m.dhcp.leasesToRecord(s, ingress))
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

// couldAnnounce reports whether a node could announce a; others are foreign MACs.
func (m *actions) couldAnnounce(s *service, a address, able []*member) (ok bool, others []string) {
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

// completeAlone completes s.addrs, and returns what nodes need that could announce them with an endpoint.
func (m *actions) completeAlone(s *service) requirements {
	need := *m.routeRequirements(s)
	if u := m.unitOfOne(s); u != nil {
		need = u.requirements
	}
	need.endpoint = false
	return need
}

// ageWithoutEndpoints returns the age of s; once announced, or future, it is old.
func (p *facts) ageWithoutEndpoints(s *service) time.Duration {
	age := p.Now.Sub(s.Created)
	if age < 0 || s.statusOurs {
		return oldServiceAge
	}
	return age
}
