package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// autoscalerTaint is put on nodes that the cluster autoscaler is about to delete
// (cluster-autoscaler/utils/taints). The other taint and the label are Kubernetes' own.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// readNode turns a Node into what is kept of it. Of its annotations those are kept
// that begin with prefix and a slash; "" keeps none.
func readNode(o *corev1.Node, prefix string) *vip.Node {
	n := &vip.Node{Name: o.Name, UID: string(o.UID), Excluded: excluded(o)}
	if _, ok := o.Labels[corev1.LabelNodeExcludeBalancers]; ok {
		n.ExclusionLabel = corev1.LabelNodeExcludeBalancers
	}
	n.ShuttingDown = leaves(o)
	_, n.Drained = o.Annotations[drainKey]
	n.ReturnUntil, _ = time.Parse(time.RFC3339, o.Annotations[returnKey])
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // others are host names
			n.Addresses = appendNew(n.Addresses, addr.Unmap())
		}
	}
	for _, text := range o.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p.Masked())
		}
	}
	for k, v := range o.Annotations {
		if name, ok := strings.CutPrefix(k, prefix+"/"); ok && prefix != "" {
			if n.Annotations == nil {
				n.Annotations = make(map[string]vip.Secret)
			}
			n.Annotations[name] = vip.Secret(v)
		}
	}
	return n
}

// excluded says why no VIP may be on the node, or "". That the node is cordoned
// (spec.unschedulable) is no reason: what runs there goes on running.
func excluded(o *corev1.Node) string {
	for _, t := range o.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService || t.Key == autoscalerTaint {
			return "it has the taint " + t.Key
		}
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			if c.Reason != "" {
				return fmt.Sprintf("its condition %s is True (%s)", c.Type, c.Reason)
			}
			return fmt.Sprintf("its condition %s is True", c.Type)
		}
	}
	return ""
}

// shuttingDown is how kubelet words it (pkg/kubelet/nodeshutdown, since 1.20). There is
// neither a reason nor a condition of its own for that.
const shuttingDown = "node is shutting down"

// leaves reports whether the node's kubelet is ending its pods, since the node is shut down.
func leaves(o *corev1.Node) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shuttingDown)
	})
}

// readRange turns a ServiceCIDR into what is kept of it.
func readRange(o *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range o.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
