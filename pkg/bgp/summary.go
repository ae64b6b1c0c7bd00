package bgp

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// summaryPeriod is how often a Summary changes while sessions stay up or down: each change is a write.
const summaryPeriod = 10 * time.Second

// A summary is what Summary last returned, never changed.
type summary struct {
	sessions []vip.BGPSession
	at       time.Time
}

// Summary is the sessions as other nodes are told, not to be changed, without blocking. It changes at once when a
// session goes up or down, comes up with other families, is added or removed, else each summaryPeriod. State is "down"
// if not established.
func (s *Speaker) Summary() []vip.BGPSession {
	return summarize(&s.summary, s.Sessions(), time.Now())
}

func summarize(last *atomic.Pointer[summary], sessions []vip.BGPSession, now time.Time) []vip.BGPSession {
	same := func(x, y vip.BGPSession) bool {
		return x.Peer == y.Peer && x.Up() == y.Up() && x.NoIPv4 == y.NoIPv4 && x.NoIPv6 == y.NoIPv6
	}
	if before := last.Load(); before != nil && slices.EqualFunc(before.sessions, sessions, same) &&
		now.Sub(before.at) < summaryPeriod {
		return before.sessions
	}
	next := summary{slices.Clone(sessions), now}
	for i := range next.sessions {
		if x := &next.sessions[i]; !x.Up() {
			x.State = "down" // which of the states before it is up changes every second
		}
	}
	last.Store(&next)
	return next.sessions
}
