package lease

import (
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxRestarts is how many of the last restarts count.
const maxRestarts = maxBreaks

// recentRestarts returns the restarts found at the start; nil after stableAfter, doubled for each, or forgetAfter.
func (o *ownLease) recentRestarts(now time.Time) []int64 {
	if now.Sub(o.began) >= min(stableAfter<<len(o.restarts), forgetAfter) {
		return nil
	}
	return o.restarts
}

// addRestart returns info as JSON with the known lease's restarts, and now, unless that process stopped in order.
func addRestart(info string, known *coordinationv1.Lease, now time.Time) string {
	if known == nil || holder(known) == "" || excluded(known) {
		return info
	}
	return editInfo(info, func(about *vip.NodeInfo) {
		about.Restarts = nil
		for _, at := range restartsOf(known) {
			if age := now.Sub(time.Unix(at, 0)); age >= 0 && age <= forgetAfter {
				about.Restarts = append(about.Restarts, at)
			}
		}
		about.Restarts = append(about.Restarts, now.Unix())
		about.Restarts = about.Restarts[max(0, len(about.Restarts)-maxRestarts):]
	})
}

// editInfo returns info, JSON, as edit changes it; unchanged if unreadable.
func editInfo(info string, edit func(*vip.NodeInfo)) string {
	var about vip.NodeInfo
	if json.Unmarshal([]byte(info), &about) != nil {
		return info
	}
	edit(&about)
	text, err := json.Marshal(about)
	if err != nil {
		return info
	}
	return string(text)
}

// restartsOf returns the last maxRestarts on a node lease; nil if unreadable.
func restartsOf(l *coordinationv1.Lease) []int64 {
	all := infoOf(l).Restarts
	return all[max(0, len(all)-maxRestarts):]
}
