package plan

import (
	"cmp"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// setVerdict sets reason and message of the verdict of s, and its owner unless that is set.
func (s *service) setVerdict(reason vip.Reason, message string) {
	s.verdict.Reason, s.verdict.Message = reason, message
	if s.unit != nil {
		s.verdict.Owner = cmp.Or(s.verdict.Owner, s.unit.claim.Holder)
	}
}

// hasVerdict reports whether the verdict of s has a reason, so was set.
func (s *service) hasVerdict() bool { return s.verdict.Reason != "" }

// setProblem sets the verdict of s, and adds an Event of the same reason and message.
func (p *pass) setProblem(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	p.addEvent(s, reason, message, 0)
}

// fail is setProblem of a Service whose conditions are this node's to write, and that is not announced.
func (p *pass) fail(s *service, reason vip.Reason, message string) {
	p.setProblem(s, reason, message)
	s.report(vip.ConditionFalse, reason, message)
}

// clearStatus has the status of s cleared of what Herald wrote there, the finalizer included.
func (p *pass) clearStatus(s *service) { s.status = &vip.Status{Finalizer: p.finalizerOf(s, false)} }

// writeStatus has the status of s written: ingress, the DHCP leases to record, and node, which announces it, "" if
// none does.
func (p *pass) writeStatus(s *service, node string, ingress []vip.Ingress, leases []vip.DHCPLease) {
	s.status = &vip.Status{VIPHost: node, Announcer: p.Announcer, Ingress: ingress, DHCPLeases: leases,
		Finalizer: p.finalizerOf(s, true)}
}

// reject sets the verdict of s, which no node announces. If this node is responsible for s it also adds an Event,
// provided that vip.Reasons marks the reason as one, and does what rejectSilently does.
func (p *pass) reject(s *service, reason vip.Reason, message string) {
	if reasonInfo(reason).Event {
		p.addEventIfResponsible(s, reason, message)
	}
	p.rejectSilently(s, reason, message)
}

// rejectSilently sets the verdict of s, which no node announces, without an Event. If this node is responsible for s
// it also sets its conditions and clears the status if Herald wrote it; that stays if s only waits for what it has.
func (p *pass) rejectSilently(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	if !p.responsible(s) {
		return
	}
	p.reportRejected(s)
	switch {
	case reason == vip.HeldByOtherAnnouncer, s.keepsStatus() && (reason == vip.NoEndpoints ||
		reason == vip.NoEligibleNode):
		p.keepStatusWithoutFinalizer(s)
	case s.statusOurs:
		p.clearStatus(s)
	}
}

// withdraw sets the verdict of s, which is no longer Herald's to announce. What Herald wrote is cleared once nothing
// of s is left (clearWithdrawn).
func (p *pass) withdraw(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	switch {
	case s.statusOurs || s.Finalizer && reason == vip.ServiceDeleted && s.Announcer == "":
		p.withdrawn = append(p.withdrawn, s)
	case p.responsible(s):
		p.reportRejected(s)
	}
	if s.statusOurs && reason != vip.ServiceDeleted {
		p.addEventIfResponsible(s, vip.VIPWithdrawn, "no longer announced: "+message)
	}
}

// addEvent adds an Event about s to the Plan, unless a renewal is late: when the API server is back it may be wrong.
func (p *pass) addEvent(s *service, reason vip.Reason, message string, occurrence int64) {
	if !p.Tenure.RenewalLateSince.IsZero() {
		return
	}
	p.out.Events = append(p.out.Events, vip.Event{
		Service: s.Key, UID: s.UID, Warning: reasonInfo(reason).Warning,
		Reason: reason, Message: message, Occurrence: occurrence,
	})
}

// addEventIfResponsible is addEvent, but does nothing if this node is not responsible for s.
func (p *pass) addEventIfResponsible(s *service, reason vip.Reason, message string) {
	if p.responsible(s) {
		p.addEvent(s, reason, message, 0)
	}
}

// reasonInfo returns the entry of reason in vip.Reasons. It panics if there is none.
func reasonInfo(reason vip.Reason) vip.ReasonInfo {
	return vip.Reasons[slices.IndexFunc(vip.Reasons, func(r vip.ReasonInfo) bool { return r.Reason == reason })]
}

// responsible reports whether this node tells about a Service that is not announced: it holds its unit, or wrote its
// status last, or is chosen. What isolated nodes know may be old.
func (p *pass) responsible(s *service) bool {
	if !p.Tenure.RenewalLateSince.IsZero() || p.self != nil && p.self.Info.Isolated {
		return false
	}
	if s.unit != nil && p.members[s.unit.claim.Holder] != nil {
		return s.unit.claim.Holder == p.Self
	}
	able := func(n *member) bool { return !n.Info.Isolated && n.caresForServices }
	return p.self != nil && chosen(hashKey(s.Key), p.alive, s.statusBy, able) == p.self
}
