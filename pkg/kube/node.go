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

// readNode converts a Node. Of its annotations those are kept that begin with prefix
// and a slash, without these; "" keeps none.
func readNode(o *corev1.Node, prefix string) *vip.Node {
	n := &vip.Node{Name: o.Name, UID: string(o.UID), Excluded: exclusionReason(o), PodCIDRs: parsePrefixes(o.Spec.PodCIDRs)}
	if _, ok := o.Labels[corev1.LabelNodeExcludeBalancers]; ok {
		n.ExclusionLabel = corev1.LabelNodeExcludeBalancers
	}
	n.ShuttingDown = slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shuttingDownMessage)
	})
	_, n.Drained = o.Annotations[drainKey]
	n.ReturnUntil, _ = time.Parse(time.RFC3339, o.Annotations[returnKey])
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // others are host names
			n.Addresses = appendUnique(n.Addresses, addr.Unmap())
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

// shuttingDownMessage is part of what kubelet writes into the condition Ready while
// the node is shut down and its pods are terminated (pkg/kubelet/nodeshutdown, since
// 1.20). There is neither a reason nor a condition of its own for that.
const shuttingDownMessage = "node is shutting down"

// exclusionReason says why no VIP may be on the node: it is out of service, about to be
// deleted, or without network; else "". That the node is cordoned (spec.unschedulable)
// is no reason: what runs there goes on running.
func exclusionReason(o *corev1.Node) string {
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

// readServiceCIDR is the prefixes of a ServiceCIDR.
func readServiceCIDR(o *networkingv1.ServiceCIDR) *[]netip.Prefix {
	prefixes := parsePrefixes(o.Spec.CIDRs)
	return &prefixes
}
