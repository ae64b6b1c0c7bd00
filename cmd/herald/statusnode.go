package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// A nodeStatus is a node lease and the Node.
type nodeStatus struct {
	// whose Name is namespace/name outside the announcers' namespace: any user can write such a Lease
	lease.NodeLease
	namespace   string   // of the lease
	node        vip.Node // zero if it is not known
	labelCounts bool     // plan.ExclusionLabelCounts of all nodes
}

// silentFor begins the state of a silent node; the time follows.
const silentFor = "silent for "

const noHerald = "no Herald runs there"

// state is fault, and the Node's name if that is another.
func (n nodeStatus) state(now time.Time) string {
	if n.node.Name == "" || n.node.Name == n.Name {
		return n.fault(now)
	}
	return n.fault(now) + "; its Node is called " + n.node.Name
}

// fault describes what is wrong with a node, or is "ok", with the label that keeps Services off.
func (n nodeStatus) fault(now time.Time) string {
	if why := n.barred(now); why != "" {
		return why
	}
	switch {
	case n.Waiting != "":
		return "ok, but another Herald waits until this one ends, since both have the name of the node: " + n.Waiting
	case n.Info.DataPlaneFault != "":
		return "takes a VIP only if no other node can: " + n.Info.DataPlaneFault
	case len(n.Info.Restarts) > 1:
		return fmt.Sprintf("ok, but takes a VIP only if no other node can: its Herald was killed or crashed %d times in "+
			"the last minutes", len(n.Info.Restarts))
	case n.node.NotReady:
		return "ok, but takes a new VIP only if no other node can: Kubernetes does not have it as Ready"
	case n.Info.LivenessOff != "":
		return "ok, but should another node die, its VIPs stay with it for the lease duration: this node exchanges no " +
			"heartbeats, since " + n.Info.LivenessOff
	case len(n.Info.Unanswered) > 0:
		return fmt.Sprintf("ok, but nobody answers it for %s, an address of another node on a link with VIPs: is the "+
			"VLAN on all ports of the switch?", n.Info.Unanswered[0])
	case len(n.Info.Suspects) > 0:
		return "ok, but it gets no heartbeats from " + strings.Join(n.Info.Suspects, ", ") +
			": is herald_peers_port open between them, UDP and TCP?"
	case n.labelCounts && n.node.ExclusionLabel != "" && n.Info.AnnouncesServices():
		return fmt.Sprintf("ok, without VIPs of Services: it has the label %s, and other nodes have not (kubeadm sets it "+
			"on control-plane nodes; kubectl label node %s %[1]s- takes it away)", n.node.ExclusionLabel, n.Name)
	}
	return "ok"
}

// runs reports whether a Herald in the announcers' namespace renews the node lease.
func (n nodeStatus) runs(now time.Time) bool {
	return !n.Fenced && now.Sub(n.RenewedAt) <= n.Duration && !strings.Contains(n.Name, "/")
}

// barred returns what keeps a node from carrying VIPs, or "".
func (n nodeStatus) barred(now time.Time) string {
	switch silent := now.Sub(n.RenewedAt); {
	case n.Fenced:
		return "fenced: its claims are over, and other nodes may take its VIPs"
	case silent > n.Duration:
		return silentFor + inWords(silent)
	case n.Info.Excluded != "":
		return "carries no VIP: " + n.Info.Excluded
	case n.node.Drained:
		return "carries no VIP: it is drained; herald undrain " + n.Name + " ends that"
	case n.node.ShuttingDown:
		return "carries no VIP: it is being shut down"
	case n.node.Excluded != "":
		return "carries no VIP of a Service: " + n.node.Excluded
	}
	link := n.Info.LinkFor("")
	i := slices.IndexFunc(n.Info.Links, func(l vip.Link) bool { return l.Name == link })
	switch {
	case link == "":
		return "carries no VIP: it has no default route, so no link for VIPs"
	case i < 0:
		return "carries no VIP: it has no link " + link
	case !n.Info.Links[i].Up:
		return "carries no VIP: its link " + link + " is down"
	case n.Info.Isolated:
		return "takes no VIP: it reaches too few other nodes on the VIPs' link, though its own link is up; look at the switch"
	}
	return ""
}
