package bgp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
)

// The summary of the sessions changes if one goes up or down, and else
// every ten seconds at most: each change costs a write of the node lease.
func TestSummary(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var last atomic.Pointer[summary]
	session := func(state string, prefixes int) []vip.BGPSession {
		return []vip.BGPSession{{Peer: "192.0.2.1", State: state, Prefixes: prefixes}}
	}
	without6 := session(vip.Established, 1) // the router was configured otherwise meanwhile
	without6[0].NoIPv6 = true
	for _, tt := range []struct {
		after time.Duration
		have  []vip.BGPSession
		want  []vip.BGPSession
	}{
		{0, session("waiting", 0), session("down", 0)},
		{1, session("active", 0), session("down", 0)},
		{2, session(vip.Established, 1), session(vip.Established, 1)},
		{3, session(vip.Established, 2), session(vip.Established, 1)},
		{11, session(vip.Established, 900), session(vip.Established, 1)},
		{12, session(vip.Established, 1000), session(vip.Established, 1000)},
		{13, session("idle", 0), session("down", 0)},
		{14, session(vip.Established, 2), session(vip.Established, 2)},
		{15, without6, without6},
		{16, nil, nil},
	} {
		got := summarize(&last, tt.have, noon.Add(tt.after*time.Second))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("after %d s (-want +got)\n%s", tt.after, diff)
		}
	}
}
