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
	drainKey  = "heraldvip.io/drain"  // when it was set: the node is to carry no VIP
	returnKey = "heraldvip.io/return" // until when the node gets back what it gave away, RFC 3339
)

// Drain marks a Node so that it carries no VIP.
func Drain(ctx context.Context, cfg *rest.Config, node string, now time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: now.UTC().Format(time.RFC3339), returnKey: nil})
}

// Undrain takes the mark away. Until the time given, which is not for long, the
// node gets back what it gave away.
func Undrain(ctx context.Context, cfg *rest.Config, node string, until time.Time) error {
	return annotateNode(ctx, cfg, node, map[string]any{drainKey: nil, returnKey: until.UTC().Format(time.RFC3339)})
}

// Returned ends what Undrain began.
func Returned(ctx context.Context, cfg *rest.Config, node string) error {
	return annotateNode(ctx, cfg, node, map[string]any{returnKey: nil})
}

// annotateNode sets annotations, and removes those that are nil.
func annotateNode(ctx context.Context, cfg *rest.Config, node string, annotations map[string]any) error {
	a, err := newAPI(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	err = a.core.Patch(types.MergePatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Into(&corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %q; kubectl get nodes lists them", node)
	case err != nil:
		return fmt.Errorf("the node %s can't be marked: %w", node, err)
	}
	return nil
}
