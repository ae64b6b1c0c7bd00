package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Annotations on Nodes.
const (
	drainKey  = "heraldvip.io/drain"  // when it was set (RFC 3339): the node is to carry no VIP
	returnKey = "heraldvip.io/return" // until when (RFC 3339) the node gets back what it handed over
)

// Drain annotates a Node so that it carries no VIP.
func Drain(ctx context.Context, cfg *rest.Config, node string, now time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: now.UTC().Format(time.RFC3339), returnKey: nil})
}

// Undrain removes Drain's annotation. Until the time given the node gets back the VIPs
// that it handed over.
func Undrain(ctx context.Context, cfg *rest.Config, node string, until time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: nil, returnKey: until.UTC().Format(time.RFC3339)})
}

// ClearReturn removes Undrain's annotation: the node gets nothing back any more.
func ClearReturn(ctx context.Context, cfg *rest.Config, node string) error {
	return annotateNode(ctx, cfg, node, map[string]any{returnKey: nil})
}

// annotateNode sets annotations of a Node, and removes those that are nil.
func annotateNode(ctx context.Context, cfg *rest.Config, node string, annotations map[string]any) error {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	err = c.core.Patch(types.MergePatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Into(&corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %q; kubectl get nodes lists them", node)
	case err != nil:
		return fmt.Errorf("the node %s can't be annotated: %w", node, err)
	}
	return nil
}
