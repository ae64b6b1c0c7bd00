package lease

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Claims returns who has which unit, for commands that only read: by the announcers' table, valid if the node lease has
// its epoch unfenced, and by other programs' Leases. An unreadable table has none.
func Claims(all []*coordinationv1.Lease, announcers string, now time.Time) map[vip.Key]vip.Claim {
	claims := make(map[vip.Key]vip.Claim)
	epochs := make(map[string]int64) // of nodes whose claims hold
	for _, x := range all {
		if n, ok := ParseNodeLease(x); ok && x.Namespace == announcers && !n.Fenced {
			epochs[n.Name] = n.Epoch
		}
	}
	for _, x := range all {
		if keyOf(x) != (vip.Key{Namespace: announcers, Name: TableName}) {
			continue
		}
		if t, err := parseTable(x); err == nil {
			for k, e := range t.Units {
				c := e.claim()
				c.Valid = e.Owner != "" && epochs[e.Owner] == e.Epoch
				claims[k] = c
			}
		}
	}
	for _, x := range all {
		_, isNode := ParseNodeLease(x)
		if who := foreignHolder(x); who != "" && !isNode && x.Name != TableName &&
			now.Sub(renewedAt(x)) < duration(x, 15*time.Second) {
			claims[keyOf(x)] = vip.Claim{Holder: who, Foreign: true, Valid: true}
		}
	}
	return claims
}

// foreignHolder returns the other program that has a Service's Lease, or "".
func foreignHolder(x *coordinationv1.Lease) string {
	name := holder(x)
	node, _, ours := parseClaimText(x.Annotations[ClaimAnnotation])
	if ours && node == name && renewTime(x).Equal(deref(x.Spec.AcquireTime).Time) {
		return ""
	}
	return name
}
