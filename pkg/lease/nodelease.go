package lease

import (
	"encoding/json"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A NodeLease is what a node lease says, for commands that only read.
type NodeLease struct {
	Name      string
	RenewedAt time.Time // by the node's own clock
	Duration  time.Duration
	Fenced    bool // its epoch is over and it has not begun another
	Info      vip.NodeInfo
}

// ParseNodeLease reads a node lease. ok is false if l is none. Info that can't be read is zero.
func ParseNodeLease(l *coordinationv1.Lease) (n NodeLease, ok bool) {
	name, ok := strings.CutPrefix(l.Name, NodePrefix)
	if !ok {
		return n, false
	}
	n = NodeLease{Name: name, Fenced: fenced(l), Duration: duration(l, 15*time.Second)}
	if l.Spec.RenewTime != nil {
		n.RenewedAt = l.Spec.RenewTime.Time
	}
	if json.Unmarshal([]byte(l.Annotations[NodeAnnotation]), &n.Info) != nil {
		n.Info = vip.NodeInfo{}
	}
	return n, true
}
