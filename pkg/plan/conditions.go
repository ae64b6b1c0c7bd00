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

// report has this node write the conditions of s (docs/why.md, "Conditions").
func (s *service) report(status vip.ConditionStatus, reason vip.Reason, message string) {
	s.announced = vip.Condition{Type: vip.Announced, Status: status, Reason: reason, Message: message}
}

// conditionsOf returns the conditions that this node writes, or nil.
func (p *facts) conditionsOf(s *service) []vip.Condition {
	if s.announced.Type == "" || s.Key == ControlPlaneKey || p.NoStatus {
		return nil
	}
	allocated, keep := vip.Condition{Type: vip.Allocated}, false
	record, why, message := p.allocated(s) // also of those in use elsewhere that nothing else names
	record.InUse = s.inUse
	switch reason := s.announced.Reason; {
	case s.announced.Status == vip.ConditionAbsent:
	case len(p.released(s.Service)) > 0, // until it is given others
		// its status stays (rejectSilently)
		len(s.addrs) == 0 && s.unoffered && (reason == vip.NoEndpoints || reason == vip.NoEligibleNode):
		keep = true
	case len(s.addrs) == 0, reason == vip.AddressInUse && s.announced.Status == vip.ConditionFalse &&
		(s.status == nil || len(s.status.Ingress) == 0):
		allocated.Status, allocated.Reason, allocated.Message = vip.ConditionFalse, reason, s.announced.Message
		switch {
		case reason == vip.InvalidField: // once that is right the Service has again what it had
			record = s.Record
		case s.Source != vip.SourceStatus: // without the field that names it, it is free
			record.Named = nil
		}
	default:
		allocated.Status, allocated.Reason, allocated.Message = vip.ConditionTrue, why, message
	}
	if s.status == nil { // then the addresses in it stay
		keep = keep || slices.ContainsFunc(s.StatusVIPs(), func(a netip.Addr) bool {
			return s.Record.Has(a) && !record.Has(a)
		})
	}
	if s.status == nil && !s.statusOurs && len(s.Ingress) > 0 { // another controller's, which Herald must not clear by it
		record = s.Record
	}
	if keep {
		record = s.Record
		if i := slices.IndexFunc(s.Conditions, func(c vip.Condition) bool { return c.Type == vip.Allocated }); i >= 0 {
			allocated = s.Conditions[i]
		}
	}
	all := []vip.Condition{allocated, s.announced, record.Condition()}
	for i := range all[:2] {
		all[i].Message = vip.Shorten(all[i].Message, maxConditionMessage)
	}
	return all
}

// addContested says that another program works against Herald, which announces s all the same.
func (p *draft) addContested(s *service, reason vip.Reason, text string) {
	p.addEvent(s, reason, text, 0)
	if s.announced.Status != vip.ConditionAbsent {
		s.announced.Reason, s.announced.Message = reason, text
	}
}

// emit adds what this node writes about s to the Plan.
func (p *draft) emit(s *service) {
	if who := p.StatusFights[s.Key]; who != "" {
		text := fmt.Sprintf("%s changes what Herald writes on this Service again and again; kube-proxy serves what the "+
			"status names, so connections fail meanwhile: %s", who, Advice(s.Key, vip.StatusContested))
		p.addContested(s, vip.StatusContested, text)
	}
	for _, a := range s.addrs {
		if p.AddressFights[a.Addr] {
			p.addContested(s, vip.AddressContested, fmt.Sprintf("another program takes %s off %s of node %s again and "+
				"again; Herald puts it back, but connections fail meanwhile: %s", a.Addr, a.Link, p.Self,
				Advice(s.Key, vip.AddressContested)))
			p.replanAfter(vip.FightWindow)
		}
	}
	if why := p.StatusRefusals[s.Key]; why != "" {
		p.addEvent(s, vip.StatusRefused, why, 0)
	}
	conditions := p.conditionsOf(s)
	switch {
	case s.status != nil:
		s.status.Service, s.status.UID, s.status.Conditions = s.Key, s.UID, conditions
		p.out.Statuses = append(p.out.Statuses, *s.status)
	case slices.ContainsFunc(conditions, func(c vip.Condition) bool { return !c.In(s.Conditions) }):
		p.out.Statuses = append(p.out.Statuses, vip.Status{Service: s.Key, UID: s.UID, ConditionsOnly: true,
			Conditions: conditions})
	}
}

// allocated returns the origin of addresses, with reason and message of Allocated.
func (p *facts) allocated(s *service) (r vip.Record, reason vip.Reason, message string) {
	for _, a := range s.addrs {
		switch {
		case a.client != nil:
			r.Leased, r.MAC, r.Link, r.Hostname = append(r.Leased, a.Addr), a.client.mac, a.client.link, a.client.hostname
		case !s.IsGiven(a.Addr):
			r.Named = append(r.Named, a.Addr)
		default:
			r.Given = append(r.Given, a.Addr)
		}
	}
	outside := p.outsidePools(s)
	inside := slices.DeleteFunc(slices.Clone(r.Given), func(a netip.Addr) bool { return slices.Contains(outside, a) })
	var texts []string
	if len(r.Leased) > 0 {
		texts = append(texts, vip.JoinAddrs(r.Leased, ", ")+": "+leasedText+" to "+r.MAC+" on "+r.Link)
	}
	if len(r.Named) > 0 {
		texts = append(texts, vip.JoinAddrs(r.Named, ", ")+": named by "+s.Source)
	}
	if len(inside) > 0 {
		texts = append(texts, vip.JoinAddrs(inside, ", ")+": of pool "+s.Allocated)
	}
	reason = vip.AddressSet
	switch {
	case len(outside) > 0:
		reason, texts = vip.AddressOutsidePools, append(texts, outsideMessage(vip.JoinAddrs(outside, ", "), s.Allocated))
	case len(r.Given) > 0 && len(r.Named) == 0:
		reason = vip.AddressAllocated
	}
	return r, reason, strings.Join(texts, "; ")
}

// outsidePools returns what s was given of a pool, and no pool offers it any more; 0.0.0.0 and :: stand for DHCP.
func (p *facts) outsidePools(s *service) []netip.Addr {
	return slices.DeleteFunc(s.ofPools(), func(a netip.Addr) bool {
		return p.offers == nil || p.Pools == nil || !slices.Contains(s.Addresses, a) || !s.IsGiven(a) ||
			p.offers.mayHave(s.Service, a)
	})
}

// outsideMessage is about addresses that no pool offers any more.
func outsideMessage(addrs, pool string) string {
	return fmt.Sprintf("%s: given of pool %s, and no pool offers it any more; it stays. For an address of a pool set the "+
		"annotation heraldvip.io/renumber to \"true\"", addrs, pool)
}

// reportRejected sets the conditions of s by its verdict, if responsible.
func (p *draft) reportRejected(s *service) {
	reason, status := s.verdict.Reason, vip.ConditionFalse
	switch reason {
	case vip.NotLoadBalancer, vip.OtherClass, vip.Ignored, vip.ServiceDeleted:
		if !s.statusOurs && !(p.Enabled && (!s.LoadBalancer || s.Ignore)) {
			return // they may be those of another Herald
		}
		s.announced = vip.Condition{Type: vip.Announced}
		return
	case vip.HeldByOtherAnnouncer:
		if len(s.Conditions) == 0 {
			return
		}
		status = vip.ConditionUnknown
	case vip.NoAddress:
		if p.givesAddresses() {
			return // the node that gives addresses tells (reportPools)
		}
	}
	s.report(status, reason, s.verdict.Message)
}
