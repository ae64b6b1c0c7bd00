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
	// Outage is the time in which nobody answered, as the node that took over has measured it: from when the one before
	// was last heard until the VIP was announced. nil: another node took over, or the one before was never heard.
	Outage *time.Duration `json:"outage,omitempty"`
}
