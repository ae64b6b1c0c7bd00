package vip

import (
	"net/netip"
	"time"
)

// An AddressCheck is a question to the neighbours on a link: who has an address?
type AddressCheck struct {
	Addr netip.Addr
	Link string
	Kind CheckKind
	// Right is the link-layer addresses that may answer, separated by spaces. What
	// else answers is wrong. With Theirs, "" lets everybody answer.
	AllowedMACs string
	// Owner and Occasion tell the tenure that is checked: it begins anew with another.
	Owner       string
	Transitions int64
}

// Same reports whether o is the same question, whoever may answer it.
func (i AddressCheck) Same(o AddressCheck) bool {
	i.AllowedMACs = o.AllowedMACs
	return i == o
}

// CheckKind is what an Inquiry wants to know.
type CheckKind string

// What can be asked.
const (
	// CheckProbe: does nobody have it yet? This node is about to use it for the first time.
	CheckProbe CheckKind = "vacant"
	// CheckDefend: this node has it. Does anybody else say so? If so, this node announces it at once.
	CheckDefend CheckKind = "mine"
	// CheckVerify: does its owner, another node, answer for it, and nobody else?
	CheckVerify CheckKind = "theirs"
)

// A CheckResult is what came of an Inquiry.
type CheckResult struct {
	AddressCheck
	At             time.Time // when that was found
	NoAnswer       bool      // with Theirs: nobody answers
	UnexpectedMACs []string  // who answers, or claims the address, and should not; sorted
	// Cleared is when all was well again after it had not been; zero if it always was,
	// or is not.
	ClearedAt time.Time
	NotSent   string // why the neighbours could not be asked, or ""
}

// OK reports whether nothing is wrong.
func (f CheckResult) OK() bool { return !f.NoAnswer && len(f.UnexpectedMACs) == 0 }
