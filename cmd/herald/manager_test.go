package main

import "testing"

// A process without egress removes what an earlier one, with egress, has left in nftables and in the routing policy database.
func TestEgressSwitchedOff(t *testing.T) {
	n := idleNode(t)
	n.cfg.Egress.Enable = false
	if o := n.agentOptions(); o.Egress == nil || o.EgressRoutes == nil {
		t.Error("the agent is handed no rooms of egress, so that what is in the kernel stays")
	}
}
