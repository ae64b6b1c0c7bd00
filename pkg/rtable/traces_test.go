package rtable

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/heraldvip/herald/pkg/vip"
)

// Routes of egress have the same protocol number. "herald uninstall node" lists and removes them by pkg/egress, so each of them once.
func TestTracesLeaveOutEgress(t *testing.T) {
	for table, want := range map[int]bool{
		198: false, vip.FirstEgressTable - 1: false, vip.FirstEgressTable: true, vip.LastEgressTable: true, vip.LastEgressTable + 1: false,
	} {
		if got := ofEgress(netlink.Route{Table: table}); got != want {
			t.Errorf("a route in table %d: of egress %v, want %v", table, got, want)
		}
	}
}
