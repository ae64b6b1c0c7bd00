package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A reporter is what stages tell of Services.
type reporter struct {
	*facts
	events []vip.Event
	again  time.Duration // after which time to plan again though nothing has changed; 0: never
}

// replanAfter sets again to d, unless that is shorter.
func (r *reporter) replanAfter(d time.Duration) {
	if d != 0 && (r.again == 0 || d < r.again) {
		r.again = d
	}
}

// setVerdict sets reason and message, and the owner unless set.
func (s *service) setVerdict(reason vip.Reason, message string) {
	s.verdict.Reason, s.verdict.Message = reason, message
	if s.unit != nil {
		s.verdict.Owner = cmp.Or(s.verdict.Owner, s.unit.claim.Holder)
	}
}

func (s *service) hasVerdict() bool { return s.verdict.Reason != "" }

// setProblem sets the verdict of s, and adds such an Event.
func (r *reporter) setProblem(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	r.addEvent(s, reason, message, 0)
}

// fail is setProblem with conditions for this node to write.
func (r *reporter) fail(s *service, reason vip.Reason, message string) {
	r.setProblem(s, reason, message)
	s.report(vip.ConditionFalse, reason, message)
}

// clearStatus clears what Herald wrote of status and finalizer.
func (r *reporter) clearStatus(s *service) {
	s.status = &vip.Status{Finalizer: r.finalizerOf(s, false)}
}

// writeStatus has the status of s written; node "" is none.
func (r *reporter) writeStatus(s *service, node string, ingress []vip.Ingress, leases []vip.DHCPLease) {
	s.status = &vip.Status{VIPHost: node, Announcer: r.Announcer, Ingress: ingress, DHCPLeases: leases,
		Finalizer: r.finalizerOf(s, true)}
}

// reject is rejectSilently with an Event, if vip.Reasons has one.
func (r *reporter) reject(s *service, reason vip.Reason, message string) {
	if reasonInfo(reason).Event {
		r.addEventIfResponsible(s, reason, message)
	}
	r.rejectSilently(s, reason, message)
}

// rejectSilently sets the verdict, and, if responsible, clears what Herald wrote.
func (r *reporter) rejectSilently(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	if !r.responsible(s) {
		return
	}
	r.reportRejected(s)
	switch {
	case reason == vip.HeldByOtherAnnouncer, s.keepsStatus() && (reason == vip.NoEndpoints ||
		reason == vip.NoEligibleNode):
		r.keepStatusWithoutFinalizer(s)
	case s.statusOurs:
		r.clearStatus(s)
	}
}

// withdraw sets the verdict of s, not Herald's; clearWithdrawn clears what was written.
func (f *admission) withdraw(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	switch {
	case s.statusOurs || s.Finalizer && reason == vip.ServiceDeleted && s.Announcer == "":
		f.withdrawn = append(f.withdrawn, s)
	case f.responsible(s):
		f.reportRejected(s)
	}
	if s.statusOurs && reason != vip.ServiceDeleted {
		f.addEventIfResponsible(s, vip.VIPWithdrawn, "no longer announced: "+message)
	}
}

// addEvent adds an Event, unless a renewal is late: it may be wrong.
func (r *reporter) addEvent(s *service, reason vip.Reason, message string, occurrence int64) {
	if !r.Tenure.RenewalLateSince.IsZero() {
		return
	}
	r.events = append(r.events, vip.Event{
		Service: s.Key, UID: s.UID, Warning: reasonInfo(reason).Warning,
		Reason: reason, Message: message, Occurrence: occurrence,
	})
}

func (r *reporter) addEventIfResponsible(s *service, reason vip.Reason, message string) {
	if r.responsible(s) {
		r.addEvent(s, reason, message, 0)
	}
}

func reasonInfo(reason vip.Reason) vip.ReasonInfo {
	return vip.Reasons[slices.IndexFunc(vip.Reasons, func(r vip.ReasonInfo) bool { return r.Reason == reason })]
}

// responsible reports whether this node tells about unannounced s.
func (p *facts) responsible(s *service) bool {
	if !p.Tenure.RenewalLateSince.IsZero() || p.self != nil && p.self.Info.Isolated {
		// what isolated nodes know may be old
		return false
	}
	if s.unit != nil && p.members[s.unit.claim.Holder] != nil {
		return s.unit.claim.Holder == p.Self
	}
	able := func(n *member) bool { return !n.Info.Isolated && n.caresForServices }
	return p.self != nil && chosen(hashKey(s.Key), p.alive, s.statusBy, able) == p.self
}
