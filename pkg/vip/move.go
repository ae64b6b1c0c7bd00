package vip

import (
	"net/netip"
	"time"
)

// A Move is a change of the node that owns a Service.
type Move struct {
	At        time.Time    `json:"at"` // when this node saw it
	Service   Key          `json:"service"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	From      string       `json:"from,omitempty"` // the node that had it before; "" if none had
	To        string       `json:"to,omitempty"`   // the node that has it since; "" if none has
	Cause     string       `json:"cause,omitempty"`
	// Outage is how long nobody answered, as the new owner measured: from when the former was last heard until it
	// announced; nil: another took over, or none was heard.
	Outage *time.Duration `json:"outage,omitempty"`
}
