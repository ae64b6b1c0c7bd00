package vip

import (
	"net/netip"
	"time"
)

// An Inquiry is a question to the neighbours on a link: who has an address?
type Inquiry struct {
	Addr netip.Addr
	Link string
	Kind Asks
	// Right is the link-layer addresses that may answer, separated by spaces. What
	// else answers is wrong. With Theirs, "" lets everybody answer.
	Right string
	// Owner and Occasion tell the tenure that is checked: it begins anew with another.
	Owner    string
	Occasion int64
}

// Same reports whether o is the same question, whoever may answer it.
func (i Inquiry) Same(o Inquiry) bool {
	i.Right = o.Right
	return i == o
}

// Asks is what an Inquiry wants to know.
type Asks string

// What can be asked.
const (
	// Vacant: does nobody have it yet? This node is about to use it for the first time.
	Vacant Asks = "vacant"
	// Mine: this node has it. Does anybody else say so? If so, this node announces it at once.
	Mine Asks = "mine"
	// Theirs: does its owner, another node, answer for it, and nobody else?
	Theirs Asks = "theirs"
)

// A Finding is what came of an Inquiry.
type Finding struct {
	Inquiry
	At     time.Time // when that was found
	Silent bool      // with Theirs: nobody answers
	Wrong  []string  // who answers, or claims the address, and should not; sorted
	// Cleared is when all was well again after it had not been; zero if it always was,
	// or is not.
	Cleared time.Time
	Unasked string // why the neighbours could not be asked, or ""
}

// Well reports whether nothing is wrong.
func (f Finding) Well() bool { return !f.Silent && len(f.Wrong) == 0 }
