package plan

import (
	"cmp"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// An outcome is what becomes of a Service on this node.
type outcome struct {
	reason  vip.Reason // of the verdict
	message string
	owner   string // "": the holder of its unit's lease, if there is one
	here    bool   // this node announces it
	events  []event

	writesStatus bool // else the status stays as it is
	status       vip.Status
}

// An event is what of a vip.Event does not follow from the Service.
type event struct {
	reason     vip.Reason
	message    string
	occurrence int64 // see vip.Event
}

// set sets the verdict.
func (o *outcome) set(reason vip.Reason, message string) { o.reason, o.message = reason, message }

// setStatus sets what is to be written into the status; a Status without Ingress clears it.
func (o *outcome) setStatus(status vip.Status) { o.writesStatus, o.status = true, status }

// addEvent adds an Event.
func (o *outcome) addEvent(reason vip.Reason, message string, occurrence int64) {
	o.events = append(o.events, event{reason, message, occurrence})
}

// publish sets the verdict of s, and adds its Events and its status, if there are any, to the Plan. Every
// Service is published once.
func (p *pass) publish(s *service, o *outcome) {
	if s.unit != nil {
		o.owner = cmp.Or(o.owner, s.unit.claim.Holder)
	}
	s.decided = true
	s.verdict.Owner, s.verdict.AnnouncedHere, s.verdict.Reason, s.verdict.Message = o.owner, o.here, o.reason, o.message
	for _, e := range o.events {
		p.event(s, e.reason, e.message, e.occurrence)
	}
	if o.writesStatus {
		o.status.Service = s.Key
		p.out.Statuses = append(p.out.Statuses, o.status)
	}
}

// reject publishes that Herald announces s on no node, and why. If this node is responsible for s it also adds
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
	o := &outcome{reason: reason, message: message}
	if s.statusBy != "" && reason != vip.HeldByOtherAnnouncer && p.responsible(s) {
		o.setStatus(vip.Status{})
		switch reason {
		case vip.NotLoadBalancer, vip.OtherClass, vip.Ignored:
			o.addEvent(vip.VIPWithdrawn, "no longer announced: "+message, 0)
		}
	}
	p.publish(s, o)
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
