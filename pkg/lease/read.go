package lease

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// ByService returns the Leases of a cluster as if all VIP leases were in the namespaces of their Services, for commands that
// only read: those in the announcers' namespace that stand for others are in the place of these if the record says that they count, and
// left out if not; and with the claims that node leases transfer as if they were written. The Leases are not changed.
func ByService(all []*coordinationv1.Lease, announcers string) []*coordinationv1.Lease {
	all = writeTransfers(all, announcers)
	from := inServices
	standsFor := make(map[*coordinationv1.Lease]vip.Key)
	replaced := make(map[vip.Key]bool)
	for _, x := range all {
		k := keyOf(x)
		if k.Namespace != announcers {
			continue
		}
		if k.Name == RecordName {
			if p, ok := parsePhase(x.Annotations[LocationAnnotation]); ok {
				from = p.from
			}
		}
		if s := serviceLeaseOf(x); s != k {
			standsFor[x], replaced[s] = s, true
		}
	}
	kept := make([]*coordinationv1.Lease, 0, len(all))
	for _, x := range all {
		s, in := standsFor[x]
		switch {
		case in && from == inAnnouncers:
			x = x.DeepCopy()
			x.Namespace, x.Name = s.Namespace, s.Name
		case in, from == inAnnouncers && replaced[keyOf(x)]:
			continue
		}
		kept = append(kept, x)
	}
	return kept
}

// writeTransfers returns all, with the claims that the node leases in the announcers' namespace transfer written on copies of the VIP leases.
func writeTransfers(all []*coordinationv1.Lease, announcers string) []*coordinationv1.Lease {
	c := newCache("", announcers)
	for _, x := range all {
		if node, ok := strings.CutPrefix(x.Name, NodePrefix); ok && x.Namespace == announcers {
			c.setTransfers(node, x)
		}
	}
	if len(c.transfers) == 0 {
		return all
	}
	all = slices.Clone(all)
	for i, x := range all {
		o := c.ownerOf(parseRecord(x))
		if !o.unwritten || o.node == "" {
			continue
		}
		all[i] = o.writtenOn(x)
	}
	return all
}
