package vip

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// A Record is where a Service's addresses are from: the condition Recorded, as tenants can't write a status.
type Record struct {
	Named    []netip.Addr `json:"named,omitempty"`    // by the Service
	Given    []netip.Addr `json:"given,omitempty"`    // of pools
	InUse    []netip.Addr `json:"inUse,omitempty"`    // of Given: its owner was answered by another host
	Leased   []netip.Addr `json:"leased,omitempty"`   // by a DHCP server, to the client that has
	MAC      string       `json:"mac,omitempty"`      // this hardware address
	Link     string       `json:"link,omitempty"`     // on this macvlan
	Hostname string       `json:"hostname,omitempty"` // by this name
}

// Has reports whether the Service has a, wherever that is from.
func (r *Record) Has(a netip.Addr) bool {
	return slices.Contains(r.Named, a) || slices.Contains(r.Given, a) || slices.Contains(r.Leased, a)
}

// Covers reports whether the Service had addresses by Herald, and a status names no other, but a gateway's (Proxy).
func (r *Record) Covers(status []Ingress) bool {
	has := func(i Ingress) bool { return r.Has(i.Addr) }
	return len(r.Named)+len(r.Given)+len(r.Leased) > 0 && (len(status) == 0 || slices.ContainsFunc(status, has)) &&
		!slices.ContainsFunc(status, func(i Ingress) bool { return !has(i) && i.IPMode != ModeProxy })
}

// String returns JSON, shorter than a condition's message may be.
func (r *Record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // addresses and strings only
	}
	return string(text)
}

// Condition returns the condition Recorded with r; ConditionAbsent if r has no address.
func (r *Record) Condition() Condition {
	if !r.Covers(nil) {
		return Condition{Type: Recorded}
	}
	return Condition{Type: Recorded, Status: ConditionTrue, Reason: AddressSet, Message: r.String()}
}

// SetConditions sets the Conditions of s, and its Record, if readable.
func (s *Service) SetConditions(all []Condition) {
	s.Conditions, s.Record = all, Record{}
	for _, c := range all {
		var r Record
		if c.Type == Recorded && c.Status == ConditionTrue && json.Unmarshal([]byte(c.Message), &r) == nil {
			s.Record = r
		}
	}
}
