package plan

import (
	"cmp"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// setVerdict says what becomes of s on this node, and why. The last verdict of a Service counts. Its owner is the
// holder of its unit's lease, unless another was set.
func (s *service) setVerdict(reason vip.Reason, message string) {
	s.verdict.Reason, s.verdict.Message = reason, message
	if s.unit != nil {
		s.verdict.Owner = cmp.Or(s.verdict.Owner, s.unit.claim.Holder)
	}
}

// decided reports whether s has a verdict.
func (s *service) decided() bool { return s.verdict.Reason != "" }

// setProblem sets the verdict of s, and adds an Event that says the same.
func (p *pass) setProblem(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	p.event(s, reason, message, 0)
}

// clearStatus has the status of s cleared.
func (p *pass) clearStatus(s *service) {
	p.out.Statuses = append(p.out.Statuses, vip.Status{Service: s.Key})
}

// writeStatus has these addresses, and what of them is leased by DHCP, written into the status of s.
func (p *pass) writeStatus(s *service, ingress []vip.Ingress, leases []vip.DHCPLease) {
	p.out.Statuses = append(p.out.Statuses, vip.Status{
		Service: s.Key, VIPHost: p.Self, Announcer: p.Announcer, Ingress: ingress, DHCPLeases: leases,
	})
}

// reject sets the verdict that Herald announces s on no node, and why. If this node is responsible for s it also adds
// an Event, provided that vip.Reasons has the reason as one of Events, and clears the status that Herald wrote,
// if it did, unless another announcer holds the Service now.
func (p *pass) reject(s *service, reason vip.Reason, message string) {
	if reasonInfo(reason).Event {
		p.eventIfResponsible(s, reason, message)
	}
	p.rejectSilently(s, reason, message)
}

// rejectSilently is reject without the Event for the reason.
func (p *pass) rejectSilently(s *service, reason vip.Reason, message string) {
	s.setVerdict(reason, message)
	if s.statusBy != "" && reason != vip.HeldByOtherAnnouncer && p.responsible(s) {
		p.clearStatus(s)
		switch reason {
		case vip.NotLoadBalancer, vip.OtherClass, vip.Ignored:
			p.event(s, vip.VIPWithdrawn, "no longer announced: "+message, 0)
		}
	}
}

// event adds an Event about s to the Plan, unless the renewal of this node's lease is late: the API server is
// out of reach, and when it is back the Event may be wrong.
func (p *pass) event(s *service, reason vip.Reason, message string, occurrence int64) {
	if !p.Tenure.RenewalLateSince.IsZero() {
		return
	}
	p.out.Events = append(p.out.Events, vip.Event{
		Service: s.Key, UID: s.UID, Warning: reasonInfo(reason).Warning,
		Reason: reason, Message: message, Occurrence: occurrence,
	})
}

// eventIfResponsible adds an Event about s to the Plan if this node is responsible for s.
func (p *pass) eventIfResponsible(s *service, reason vip.Reason, message string) {
	if p.responsible(s) {
		p.event(s, reason, message, 0)
	}
}

// reasonInfo is what vip.Reasons says of a reason. It panics if it is not there.
func reasonInfo(reason vip.Reason) vip.ReasonInfo {
	return vip.Reasons[slices.IndexFunc(vip.Reasons, func(r vip.ReasonInfo) bool { return r.Reason == reason })]
}

// responsible reports whether this node is the one that sends Events about a Service that is not announced, and
// clears its status: the node that holds the claim on its unit; if none does, the node that wrote its status
// last, if that is alive; else the alive node with the highest rendezvous hash. While the renewal of this
// node's lease is late, or it is isolated, it is responsible for nothing, since what it knows may be old.
func (p *pass) responsible(s *service) bool {
	if !p.Tenure.RenewalLateSince.IsZero() || p.self != nil && p.self.Info.Isolated {
		return false
	}
	if s.unit != nil && p.members[s.unit.claim.Holder] != nil {
		return s.unit.claim.Holder == p.Self
	}
	if n := p.members[s.statusBy]; n != nil && n.Alive {
		return n == p.self
	}
	return len(p.alive) > 0 && highestHash(hashKey(s.Key), p.alive) == p.self
}
