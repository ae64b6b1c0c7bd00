// Package lease is how nodes agree on who owns which VIP.
//
// Each node renews one Lease of its own (the node lease); each VIP has a Lease
// that is written only when its owner changes (the VIP lease). Whoever wants to
// take what a silent node holds must first fence that node: mark its epoch as
// over on its node lease, on top of the very version that was seen to grow old.
// The API server lets that write through only if the node has not renewed since,
// and a node that has not renewed for that long has given up by itself. So a
// claim is taken only from a node that has let go of it, however stale the
// taker's cache is.
//
//	node lease   n renews             alive
//	             silent for duration  another node fences epoch e: all claims n@e are void
//	             n finds itself fenced, or its lease in other hands: drops all, starts epoch e+1
//	             n stops              releases it, then deletes it
//
//	VIP lease    absent, blank, void  free: one candidate writes n@e, compare-and-swap
//	             n@e                  held; n may write another node's name into it (hand-over)
//	             x, without @e        held by a stranger until unchanged for its own duration
package lease

import (
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Annotations on Leases.
const (
	// ClaimAnnotation, on a VIP lease, is <node>@<epoch>. A holderIdentity that it
	// does not name was written by another program.
	ClaimAnnotation = "heraldvip.io/claim"
	// FromAnnotation, on a VIP lease, is the node that had it before.
	FromAnnotation = "heraldvip.io/from"
	// FencedAnnotation, on a node lease, is the epoch that is over.
	FencedAnnotation = "heraldvip.io/fenced"
	// NodeAnnotation, on a node lease, is a vip.Info as JSON.
	NodeAnnotation = "heraldvip.io/node"
)

// NodePrefix begins the name of every node lease; the node's name follows.
const NodePrefix = "herald-node-"

// Labels are on every Lease that Herald creates, so that they can be found.
var Labels = map[string]string{"app.kubernetes.io/managed-by": "herald"}

func keyOf(l *coordinationv1.Lease) vip.Key {
	return vip.Key{Namespace: l.Namespace, Name: l.Name}
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func transitions(l *coordinationv1.Lease) int64 {
	if l.Spec.LeaseTransitions == nil {
		return 0
	}
	return int64(*l.Spec.LeaseTransitions)
}

// claimText is the value of ClaimAnnotation.
func claimText(node string, epoch int64) string {
	return node + "@" + strconv.FormatInt(epoch, 10)
}

// claimOf reads who holds a VIP lease. ok is false if a program that is not
// Herald wrote the holder.
func claimOf(l *coordinationv1.Lease) (node string, epoch int64, ok bool) {
	node = holder(l)
	text, e, found := strings.Cut(l.Annotations[ClaimAnnotation], "@")
	epoch, err := strconv.ParseInt(e, 10, 64)
	return node, epoch, found && err == nil && text == node
}

// A paper is a Lease that has been read once: every pass asks for what it says.
type paper struct {
	*coordinationv1.Lease
	key     vip.Key
	version uint64
	holder  string
	epoch   int64 // of the claim
	ours    bool  // a Herald wrote the holder
	bereft  bool  // a Herald claimed it, and somebody else has blanked its holder
}

func peruse(l *coordinationv1.Lease) *paper {
	x := &paper{Lease: l, key: keyOf(l), version: version(l)}
	x.holder, x.epoch, x.ours = claimOf(l)
	x.bereft = x.holder == "" && l.Annotations[ClaimAnnotation] != ""
	return x
}

// fencedAt is the epoch that is over, or 0.
func fencedAt(l *coordinationv1.Lease) int64 {
	e, _ := strconv.ParseInt(l.Annotations[FencedAnnotation], 10, 64)
	return e
}

// version is the object's place in the API server's history. Kubernetes
// promises since 1.35 that resourceVersions of one resource are ordered numbers;
// etcd has made them so from the beginning.
func version(l *coordinationv1.Lease) uint64 {
	v, _ := strconv.ParseUint(l.ResourceVersion, 10, 64)
	return v
}

// firstEpoch is the epoch of a node whose lease does not exist. It must be
// greater than any that the node ever had, and nobody may remember: so it counts
// seconds since 2020.
func firstEpoch(now time.Time) int64 {
	return max(1, now.Unix()-time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
}
