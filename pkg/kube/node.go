package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// autoscalerTaint is on nodes that the autoscaler is about to delete (cluster-autoscaler/utils/taints).
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// readNode converts a Node, with annotations below prefix/ except Herald's.
func readNode(o *corev1.Node, prefix string) *vip.Node {
	n := &vip.Node{Name: o.Name, UID: string(o.UID), Excluded: exclusionReason(o),
		PodCIDRs: parsePrefixes(o.Spec.PodCIDRs)}
	if _, ok := o.Labels[corev1.LabelNodeExcludeBalancers]; ok {
		n.ExclusionLabel = corev1.LabelNodeExcludeBalancers
	}
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			no := c.Status == corev1.ConditionFalse
			n.ShuttingDown = no && strings.Contains(c.Message, shuttingDownMessage)
			n.NetworkNotReady = no && strings.Contains(c.Message, networkNotReadyMessage)
			n.NotReady = n.NotReady || no || c.Status == corev1.ConditionUnknown
		case corev1.NodeNetworkUnavailable:
			n.NotReady = n.NotReady || c.Status == corev1.ConditionTrue
		}
	}
	_, n.Drained = o.Annotations[drainKey]
	n.ReturnUntil, _ = time.Parse(time.RFC3339, o.Annotations[returnKey])
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // others are host names
			n.Addresses = vip.AppendUnique(n.Addresses, addr.Unmap())
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

// shuttingDownMessage is in kubelet's condition Ready while a node shuts down (pkg/kubelet/nodeshutdown, since 1.20):
// nothing else says so.
const shuttingDownMessage = "node is shutting down"

// networkNotReadyMessage is in kubelet's condition Ready while the CNI does not work; NetworkUnavailable is not
// kubelet's.
const networkNotReadyMessage = "container runtime network not ready"

// exclusionReason says why no VIP may be on the node, or "".
func exclusionReason(o *corev1.Node) string {
	for _, t := range o.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService || t.Key == autoscalerTaint {
			return "it has the taint " + t.Key
		}
	}
	return ""
}

const (
	drainKey  = "heraldvip.io/drain"  // when it was set (RFC 3339): the node is to carry no VIP
	returnKey = "heraldvip.io/return" // until when at most (RFC 3339) the node gets back what it handed over
)

// Drain annotates a Node so that it carries no VIP.
func Drain(ctx context.Context, cfg *rest.Config, node string, now time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: now.UTC().Format(time.RFC3339), returnKey: nil})
}

// Undrain removes Drain's annotation; until ClearReturn, or then, the node gets its VIPs back.
func Undrain(ctx context.Context, cfg *rest.Config, node string, until time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: nil, returnKey: until.UTC().Format(time.RFC3339)})
}

// ClearReturn removes Undrain's annotation: the node gets nothing back.
func ClearReturn(ctx context.Context, cfg *rest.Config, node string) error {
	return annotateNode(ctx, cfg, node, map[string]any{returnKey: nil})
}

func annotateNode(ctx context.Context, cfg *rest.Config, node string, annotations map[string]any) error {
	err := annotate(ctx, cfg, "nodes", vip.Key{Name: node}, annotations)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %q; kubectl get nodes lists them", node)
	case err != nil:
		return fmt.Errorf("the node %s can't be annotated: %w", node, err)
	}
	return nil
}

// annotate sets annotations of an object, and removes nil ones.
func annotate(ctx context.Context, cfg *rest.Config, resource string, k vip.Key, annotations any) error {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	return patch(c, resource, k, map[string]any{"metadata": map[string]any{"annotations": annotations}}).Do(ctx).Error()
}

func patch(c *clients, resource string, k vip.Key, changes map[string]any) *rest.Request {
	body, _ := json.Marshal(changes) // can't fail
	return c.core.Patch(types.StrategicMergePatchType).NamespaceIfScoped(k.Namespace, k.Namespace != "").
		Resource(resource).Name(k.Name).Body(body)
}
