package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxConditionMessage is the length at which the message of a condition is cut, in bytes.
const maxConditionMessage = 1024

// givenText follows the addresses that were given of pools in the message of the condition Allocated, also where pkg/kube writes it with the addresses.
const givenText = ": of pool "

// report has this node write the conditions of s, with the Status of s if the Plan has one
// (docs/why.md, "Conditions"): Announced with announced, reason and message; Allocated, which is False for the
// same reason if s has no address. Only the node that decides what becomes of s calls it: its
// owner; the one that writes its status, if every node advertises it; if nobody announces it, the
// one that is responsible. It does nothing for the control plane, or without statuses.
func (p *pass) report(s *service, announced vip.ConditionStatus, reason vip.Reason, message string) {
	if s.Key == ControlPlaneKey || p.NoStatus {
		return
	}
	allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue}
	had := slices.IndexFunc(s.Conditions, func(c vip.Condition) bool { return c.Type == vip.Allocated })
	switch {
	case had >= 0 && len(p.released(s.Service)) > 0:
		allocated = s.Conditions[had] // until it is given others, it says that it was given these
	case len(s.addrs) == 0 && s.unoffered && (reason == vip.NoEndpoints || reason == vip.NoEligibleNode) && had >= 0:
		allocated = s.Conditions[had] // with the status, which stays (rejectSilently), it says what s may have again
	case len(s.addrs) == 0, reason == vip.AddressInUse && announced != vip.ConditionTrue && !p.shows(s):
		allocated.Status, allocated.Reason, allocated.Message = vip.ConditionFalse, reason, message
	default:
		allocated.Reason, allocated.Message = p.allocatedReason(s)
	}
	s.conditions = []vip.Condition{allocated, {Type: vip.Announced, Status: announced, Reason: reason, Message: message}}
}

// shows reports whether the last Status of the Plan is one of s, with an address.
func (p *pass) shows(s *service) bool {
	n := len(p.out.Statuses)
	return n > 0 && p.out.Statuses[n-1].Service == s.Key && len(p.out.Statuses[n-1].Ingress) > 0
}

// allocatedReason returns reason and message of the condition Allocated of s, which has addresses:
// which are leased by DHCP, and to which client (leasedTo reads that), and whether the others are given from a pool, given from one that has them no more, or
// named by s.
func (p *pass) allocatedReason(s *service) (reason vip.Reason, message string) {
	var others, outside, leased []string
	for _, a := range s.addrs {
		text := a.Addr.String()
		if a.client != nil {
			leased = append(leased, text)
			continue
		}
		others = append(others, text)
		if p.isOutsidePools(s.Service, a.Addr) {
			outside = append(outside, text)
		}
	}
	text := strings.Join(others, ", ")
	switch {
	case len(others) == 0:
		return vip.AddressSet, s.client.leasedMessage(leased)
	case len(outside) > 0:
		reason, message = vip.AddressOutsidePools, outsideMessage(strings.Join(outside, ", "), s.Allocated)
		if len(outside) < len(others) {
			message = text + ": allocated; " + message // all are to be named first (allocates)
		}
	case len(s.Own) > 0:
		reason, message = vip.AddressSet, text+": named by "+s.Source+", but for what is of pool "+s.Allocated
	case s.Allocated != "":
		reason, message = vip.AddressAllocated, text+givenText+s.Allocated
	default:
		reason, message = vip.AddressSet, text+": named by "+s.Source
	}
	if len(leased) > 0 {
		message = s.client.leasedMessage(leased) + "; " + message
	}
	return reason, message
}

// allocates reports whether the condition Allocated of s is True and names a, as allocatedReason writes it. The role edit can't write a
// status, and what Herald takes into the message from annotations comes after the addresses.
func allocates(conditions []vip.Condition, a netip.Addr) bool {
	for _, c := range conditions {
		if c.Type != vip.Allocated || c.Status != vip.ConditionTrue {
			continue
		}
		addrs, rest, _ := strings.Cut(c.Message, ": ")
		if strings.HasPrefix(rest, leasedText) {
			_, rest, _ = strings.Cut(rest, "; ")
			others, _, _ := strings.Cut(rest, ": ")
			addrs += ", " + others
		}
		return slices.Contains(strings.Split(addrs, ", "), a.String())
	}
	return false
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
			s.conditions = []vip.Condition{{Type: vip.Allocated}, {Type: vip.Announced}}
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

// addConditions adds the conditions of s to the Plan: to the Status of s, of which statuses has the
// index in the Plan; if there is none, as a Status of their own, unless s has these conditions
// already. Then the addresses in the status stay as well, and so does the condition Allocated of s if these are of it, and not of the new one.
func (p *pass) addConditions(s *service, statuses map[vip.Key]int) {
	for i := range s.conditions {
		if m := s.conditions[i].Message; len(m) > maxConditionMessage {
			s.conditions[i].Message = strings.ToValidUTF8(m[:maxConditionMessage-3], "") + "..."
		}
	}
	if i, ok := statuses[s.Key]; ok {
		p.out.Statuses[i].Conditions = s.conditions
		return
	}
	for i, c := range s.conditions {
		if c.Type == vip.Allocated && slices.ContainsFunc(s.StatusVIPs(), func(a netip.Addr) bool { return allocates(s.Conditions, a) && !allocates(s.conditions[i:i+1], a) }) {
			s.conditions[i] = s.Conditions[slices.IndexFunc(s.Conditions, func(o vip.Condition) bool { return o.Type == vip.Allocated })]
		}
	}
	if slices.ContainsFunc(s.conditions, func(c vip.Condition) bool { return !c.In(s.Conditions) }) {
		p.out.Statuses = append(p.out.Statuses, vip.Status{Service: s.Key, ConditionsOnly: true, Conditions: s.conditions})
	}
}

// refusalAdvice is what to do where the API server does not take what is written on a Service.
const refusalAdvice = "; make the Service smaller, or ask the operator of the webhook or policy that denies it"

// reportRefusals adds an Event for each Service whose status this node writes and the API server does not take, or
// somebody else changes again and again; the condition Announced of the latter says so.
func (p *pass) reportRefusals(all []*service) {
	for _, s := range all {
		if who := cmp.Or(p.StatusFights[s.Key], p.AssignmentFights[s.Key]); who != "" {
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
