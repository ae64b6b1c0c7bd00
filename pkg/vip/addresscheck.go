package vip

import (
	"net/netip"
	"time"
)

// An AddressCheck asks a link's hosts who has an address, by ARP or neighbor solicitations.
type AddressCheck struct {
	Addr netip.Addr
	Link string
	Kind CheckKind
	// AllowedMACs may answer, separated by spaces; others are in CheckResult.UnexpectedMACs. With CheckVerify "" allows
	// all; CheckNeighbor allows all; CheckFormer ignores others.
	AllowedMACs string
	// Owner and Transitions, with CheckVerify, are of the Claim: after a move a check begins from nothing.
	Owner       string
	Transitions int64
}

// Same reports whether c and o differ in AllowedMACs at most.
func (c AddressCheck) Same(o AddressCheck) bool {
	c.AllowedMACs = o.AllowedMACs
	return c == o
}

// A CheckKind is the purpose of an AddressCheck.
type CheckKind string

// The kinds of AddressCheck.
const (
	// CheckProbe asks whether an address about to be used first is free (RFC 5227 section 2.1).
	CheckProbe CheckKind = "probe"
	// CheckDefend asks whether others claim this node's address, and then announces it at once (RFC 5227 section 2.4 (b)).
	CheckDefend CheckKind = "defend"
	// CheckVerify asks whether Owner, another node, and nobody else answers.
	CheckVerify CheckKind = "verify"
	// CheckNeighbor asks whether Owner, another node, answers for its own address, while other hosts are heard: else this
	// node is cut off.
	CheckNeighbor CheckKind = "neighbor"
	// CheckFormer asks often whether AllowedMACs, of nodes that lost their claims, still answer; others are ignored.
	CheckFormer CheckKind = "former"
)

// A CheckResult is the outcome of an AddressCheck.
type CheckResult struct {
	AddressCheck
	At             time.Time `json:",omitzero"` // when it was known
	NoAnswer       bool      // with CheckVerify, CheckNeighbor and CheckFormer: nobody answered
	UnexpectedMACs []string  // who answered, or announced the address, and is not allowed to; sorted
	// StillAnsweredBy, with CheckFormer, is which of AllowedMACs answers longer than a kernel does without Herald, or "".
	StillAnsweredBy string `json:",omitempty"`
	// ClearedAt is when the result became OK again, or zero.
	ClearedAt time.Time `json:",omitzero"`
	NotSent   string    // why the question could not be sent, or ""
}

// OK reports whether the owner answers (CheckVerify) and nobody else does for long.
func (r CheckResult) OK() bool {
	return !r.NoAnswer && len(r.UnexpectedMACs) == 0 && r.StillAnsweredBy == ""
}
