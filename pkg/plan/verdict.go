package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A draft is the Plan as far as it is made; all stages add to it.
type draft struct {
	*facts
	out    vip.Plan
	wanted map[netip.Addr]bool // the addresses in out.Addresses
}

// replanAfter sets ReplanAfter to d, unless that is shorter.
func (p *draft) replanAfter(d time.Duration) {
	if d != 0 && (p.out.ReplanAfter == 0 || d < p.out.ReplanAfter) {
		p.out.ReplanAfter = d
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
func (p *draft) setProblem(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	p.addEvent(s, reason, message, 0)
}

// fail is setProblem with conditions for this node to write.
func (p *draft) fail(s *service, reason vip.Reason, message string) {
	p.setProblem(s, reason, message)
	s.report(vip.ConditionFalse, reason, message)
}

// clearStatus clears what Herald wrote of status and finalizer.
func (p *draft) clearStatus(s *service) {
	s.status = &vip.Status{Finalizer: p.finalizerOf(s, false)}
}

// writeStatus has the status of s written; node "" is none.
func (p *draft) writeStatus(s *service, node string, ingress []vip.Ingress, leases []vip.DHCPLease) {
	s.status = &vip.Status{VIPHost: node, Announcer: p.Announcer, Ingress: ingress, DHCPLeases: leases,
		Finalizer: p.finalizerOf(s, true)}
}

// reject is rejectSilently with an Event, if vip.Reasons has one.
func (p *draft) reject(s *service, reason vip.Reason, message string) {
	if reasonInfo(reason).Event {
		p.addEventIfResponsible(s, reason, message)
	}
	p.rejectSilently(s, reason, message)
}

// rejectSilently sets the verdict, and, if responsible, clears what Herald wrote.
func (p *draft) rejectSilently(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	if !p.responsible(s) {
		return
	}
	p.reportRejected(s)
	switch {
	case reason == vip.HeldByOtherAnnouncer, s.keepsStatus() && (reason == vip.NoEndpoints ||
		reason == vip.NoEligibleNode):
		p.keepStatusWithoutFinalizer(s)
	case s.statusOurs || s.Announcer == "" && s.Record.Covers(s.Ingress): // somebody may have replaced the Service
		p.clearStatus(s)
	}
}

// withdraw sets the verdict of s, not Herald's; clearWithdrawn clears what was written.
func (f *admission) withdraw(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	switch {
	case s.statusOurs || s.Announcer == "" && (s.Finalizer && reason == vip.ServiceDeleted ||
		s.Record.Covers(s.Ingress) && f.Enabled && reason != vip.OtherClass): // else another Herald's
		f.withdrawn = append(f.withdrawn, s)
	case f.responsible(s):
		f.reportRejected(s)
	}
	if s.statusOurs && reason != vip.ServiceDeleted {
		f.addEventIfResponsible(s, vip.VIPWithdrawn, "no longer announced: "+message)
	}
}

// addEvent adds an Event, unless a renewal is late: it may be wrong.
func (p *draft) addEvent(s *service, reason vip.Reason, message string, occurrence int64) {
	if !p.Tenure.RenewalLateSince.IsZero() {
		return
	}
	p.out.Events = append(p.out.Events, vip.Event{
		Service: s.Key, UID: s.UID, Warning: reasonInfo(reason).Warning,
		Reason: reason, Message: message, Occurrence: occurrence,
	})
}

func (p *draft) addEventIfResponsible(s *service, reason vip.Reason, message string) {
	if p.responsible(s) {
		p.addEvent(s, reason, message, 0)
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
	able := func(n *member) bool {
		if o := n.Info.Options; s.reserved { // the control plane's: who has cp_enable
			return !n.Info.Isolated && o != nil && len(o.ControlPlane) > 0
		}
		return !n.Info.Isolated && n.caresForServices
	}
	return p.self != nil && chosen(hashKey(s.Key), p.alive, s.statusBy, able) == p.self
}
