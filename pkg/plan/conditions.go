package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxConditionMessage is the length at which the message of a condition is cut, in bytes.
const maxConditionMessage = 1024

// report has this node write the conditions of s (docs/why.md, "Conditions"): Announced with announced, reason and message;
// Allocated, which is False for the same reason if s has no address; and the Record. Only the node that decides what becomes
// of s calls it.
func (p *pass) report(s *service, announced vip.ConditionStatus, reason vip.Reason, message string) {
	if s.Key == ControlPlaneKey || p.NoStatus {
		return
	}
	s.conditions = []vip.Condition{
		{Type: vip.Allocated, Status: vip.ConditionTrue}, {Type: vip.Announced, Status: announced, Reason: reason, Message: message}, {Type: vip.Recorded},
	}
	allocated := &s.conditions[0]
	switch {
	case len(p.released(s.Service)) > 0, // until it is given others
		len(s.addrs) == 0 && s.unoffered && (reason == vip.NoEndpoints || reason == vip.NoEligibleNode): // its status stays (rejectSilently)
		s.keepRecord()
	case len(s.addrs) == 0, reason == vip.AddressInUse && announced != vip.ConditionTrue && !p.shows(s):
		allocated.Status, allocated.Reason, allocated.Message = vip.ConditionFalse, reason, message
	default:
		s.record, allocated.Reason, allocated.Message = p.allocated(s)
		s.conditions[2] = s.record.Condition()
	}
}

// keepRecord puts what the status says into the conditions Allocated and Recorded that are to be written.
func (s *service) keepRecord() {
	s.record = s.Record
	for i := range s.conditions {
		if c := &s.conditions[i]; c.Type != vip.Announced {
			*c = s.condition(c.Type)
		}
	}
}

// condition returns the condition of a type that the status of s has; absent if it has none.
func (s *service) condition(t vip.ConditionType) vip.Condition {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c
		}
	}
	return vip.Condition{Type: t}
}

// shows reports whether the last Status of the Plan is one of s, with an address.
func (p *pass) shows(s *service) bool {
	n := len(p.out.Statuses)
	return n > 0 && p.out.Statuses[n-1].Service == s.Key && len(p.out.Statuses[n-1].Ingress) > 0
}

// allocated returns where s has its addresses from, with reason and message of the condition Allocated.
func (p *pass) allocated(s *service) (r vip.Record, reason vip.Reason, message string) {
	var inside, outside []netip.Addr // of those that are given
	for _, a := range s.addrs {
		switch {
		case a.client != nil:
			r.Leased, r.MAC, r.Link = append(r.Leased, a.Addr), a.client.mac, a.client.link
		case !s.IsGiven(a.Addr):
			r.Named = append(r.Named, a.Addr)
		case p.isOutsidePools(s.Service, a.Addr):
			r.Given, outside = append(r.Given, a.Addr), append(outside, a.Addr)
		default:
			r.Given, inside = append(r.Given, a.Addr), append(inside, a.Addr)
		}
	}
	var texts []string
	if len(r.Leased) > 0 {
		texts = append(texts, joinAddrs(r.Leased)+": "+leasedText+" to "+r.MAC+" on "+r.Link)
	}
	if len(r.Named) > 0 {
		texts = append(texts, joinAddrs(r.Named)+": named by "+s.Source)
	}
	if len(inside) > 0 {
		texts = append(texts, joinAddrs(inside)+": of pool "+s.Allocated)
	}
	reason = vip.AddressSet
	switch {
	case len(outside) > 0:
		reason, texts = vip.AddressOutsidePools, append(texts, outsideMessage(joinAddrs(outside), s.Allocated))
	case len(r.Given) > 0 && len(r.Named) == 0:
		reason = vip.AddressAllocated
	}
	return r, reason, strings.Join(texts, "; ")
}

// joinAddrs returns addresses as text, with commas.
func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// isOutsidePools reports whether s was given a of a pool, and no pool has a any more.
func (p *pass) isOutsidePools(s *vip.Service, a netip.Addr) bool {
	return s.IsGiven(a) && p.offers != nil && p.Pools != nil && !p.offers.policy.InPool(a, s.Allocated)
}

// outsideMessage returns the message about addresses that were given from a pool and are in no pool
// any more: that they stay, and how the Service gets others.
func outsideMessage(addrs, pool string) string {
	return fmt.Sprintf("%s: given of pool %s, and in no pool any more; it stays. For an address of a pool set the annotation heraldvip.io/renumber to \"true\"", addrs, pool)
}

// reportRejected sets the conditions of a Service that no node announces to Announced False, with
// reason and message (report); only the node that is responsible for s calls it. For some reasons
// it does something else. A Service that is not this Herald's loses these conditions, unless they
// may be those of another Herald; one that another announcer serves gets none if it has none; and
// one that waits for an address of a pool gets them from the node that gives addresses
// (reportWaiting).
func (p *pass) reportRejected(s *service, reason vip.Reason, message string) {
	switch reason {
	case vip.NotLoadBalancer, vip.OtherClass, vip.Ignored, vip.ServiceDeleted:
		if s.statusOurs || p.Enabled && (!s.LoadBalancer || s.Ignore) {
			s.conditions = []vip.Condition{{Type: vip.Allocated}, {Type: vip.Announced}, {Type: vip.Recorded}}
		}
	case vip.HeldByOtherAnnouncer:
		if len(s.Conditions) > 0 {
			p.report(s, vip.ConditionUnknown, reason, message)
		}
	case vip.NoAddress:
		if !p.givesAddresses() {
			p.report(s, vip.ConditionFalse, reason, message)
		}
	default:
		p.report(s, vip.ConditionFalse, reason, message)
	}
}

// reportWaiting sets the conditions of a Service that waits for an address of a pool to Announced
// False for NoPoolAddress, with message, and adds them to the Plan. It does nothing if there is no
// Service with that key and UID, or if it names an address. Only the node that gives addresses
// calls it.
func (f *filter) reportWaiting(k vip.Key, uid, message string) {
	if i, ok := slices.BinarySearchFunc(f.Services, k, func(s vip.Service, k vip.Key) int { return s.Key.Compare(k) }); ok && f.Services[i].UID == uid && len(f.Services[i].Addresses) == 0 {
		s := &service{Service: &f.Services[i]}
		f.report(s, vip.ConditionFalse, vip.NoPoolAddress, message)
		f.addConditions(s, nil)
	}
}

// addConditions adds the conditions of s to the Plan: to the Status of s, of which statuses has the index; if there is none, as a
// Status of their own, unless s has them already. Then the addresses in the status stay, and so does the Record that has them.
func (p *pass) addConditions(s *service, statuses map[vip.Key]int) {
	i, ok := statuses[s.Key]
	if !ok && slices.ContainsFunc(s.StatusVIPs(), func(a netip.Addr) bool { return s.Record.Has(a) && !s.record.Has(a) }) {
		s.keepRecord()
	}
	for i := range s.conditions {
		if c := &s.conditions[i]; c.Type != vip.Recorded && len(c.Message) > maxConditionMessage { // no Record is that long
			c.Message = strings.ToValidUTF8(c.Message[:maxConditionMessage-3], "") + "..."
		}
	}
	switch {
	case ok:
		p.out.Statuses[i].Conditions = s.conditions
	case slices.ContainsFunc(s.conditions, func(c vip.Condition) bool { return !c.In(s.Conditions) }):
		p.out.Statuses = append(p.out.Statuses, vip.Status{Service: s.Key, ConditionsOnly: true, Conditions: s.conditions})
	}
}

// refusalAdvice is what to do where the API server does not take what is written on a Service.
const refusalAdvice = "; make the Service smaller, or ask the operator of the webhook or policy that denies it"

// reportRefusals adds an Event for each Service whose status this node writes and the API server does not take, or
// somebody else changes again and again; the condition Announced of the latter says so.
func (p *pass) reportRefusals(all []*service) {
	for _, s := range all {
		if who := p.StatusFights[s.Key]; who != "" {
			text := fmt.Sprintf("%s changes what Herald writes on this Service again and again; kube-proxy serves what the status names, so connections fail meanwhile: %s",
				who, Advice(s.Key, vip.StatusContested))
			p.addEvent(s, vip.StatusContested, text, 0)
			for i := range s.conditions {
				if c := &s.conditions[i]; c.Type == vip.Announced && c.Status != vip.ConditionAbsent {
					c.Reason, c.Message = vip.StatusContested, text
				}
			}
		}
		if why := p.StatusRefusals[s.Key]; why != "" {
			p.addEvent(s, vip.StatusRefused, why+refusalAdvice, 0)
		}
	}
}

// addAllConditions adds the conditions of all Services to the Statuses of the Plan (addConditions).
func (p *pass) addAllConditions(all []*service) {
	statuses := make(map[vip.Key]int, len(p.out.Statuses))
	for i := range p.out.Statuses {
		statuses[p.out.Statuses[i].Service] = i
	}
	for _, s := range all {
		if s.conditions != nil {
			p.addConditions(s, statuses)
		}
	}
}
