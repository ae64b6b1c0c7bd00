package vip

import (
	"net/netip"
	"time"
)

// An AddressCheck asks the hosts on a link who has an address, by ARP requests or
// neighbor solicitations.
type AddressCheck struct {
	Addr netip.Addr
	Link string
	Kind CheckKind
	// AllowedMACs is the link-layer addresses that may answer, separated by spaces; an
	// answer by any other is in CheckResult.UnexpectedMACs. With CheckVerify, "" allows all;
	// CheckNeighbor ignores it and allows all. CheckFormer ignores other answers.
	AllowedMACs string
	// Owner and Transitions, with CheckVerify, are Holder and Transitions of the Claim: a
	// check of another owner, or of the same after a move, begins from nothing.
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
	// CheckProbe asks whether an address that this node is about to use for the first
	// time is free (RFC 5227 section 2.1).
	CheckProbe CheckKind = "probe"
	// CheckDefend asks whether another host claims an address that this node has, and
	// announces the address at once if so (RFC 5227 section 2.4 (b)).
	CheckDefend CheckKind = "defend"
	// CheckVerify asks whether Owner, another node, answers for an address, and nobody else.
	CheckVerify CheckKind = "verify"
	// CheckNeighbor asks whether Owner, another node, answers for an address of its own, as long as
	// other hosts on the link are heard: else it is this node that is cut off.
	CheckNeighbor CheckKind = "neighbor"
	// CheckFormer asks, in quick succession, whether one of AllowedMACs, which belong to nodes that have lost their
	// claims, goes on to answer for an address that this node is about to bind. Other answers are ignored.
	CheckFormer CheckKind = "former"
)

// A CheckResult is the outcome of an AddressCheck.
type CheckResult struct {
	AddressCheck
	At             time.Time `json:",omitzero"` // when it was known
	NoAnswer       bool      // with CheckVerify, CheckNeighbor and CheckFormer: nobody answered
	UnexpectedMACs []string  // who answered, or announced the address, and is not allowed to; sorted
	// StillAnsweredBy, with CheckFormer, is the one of AllowedMACs that goes on to answer, for longer than a kernel does
	// whose Herald has ended; "" until then.
	StillAnsweredBy string `json:",omitempty"`
	// ClearedAt is when the result became OK after it had not been; zero if it always was,
	// or is not.
	ClearedAt time.Time `json:",omitzero"`
	NotSent   string    // why the question could not be sent, or ""
}

// OK reports whether the owner answers (CheckVerify) and nobody else does for long.
func (r CheckResult) OK() bool {
	return !r.NoAnswer && len(r.UnexpectedMACs) == 0 && r.StillAnsweredBy == ""
}
