package lab

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// Owner returns the node that has a unit by the table in kube-system, or an error.
func (l *Lab) Owner(ctx context.Context, namespace, unit string) (string, error) {
	list, err := l.client.CoordinationV1().Leases("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var all []*coordinationv1.Lease
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	c := lease.Claims(all, metav1.NamespaceSystem, time.Now())[vip.Key{Namespace: namespace, Name: unit}]
	if !c.Valid || c.Foreign {
		return "", fmt.Errorf("no node has %s/%s: %+v", namespace, unit, c)
	}
	return c.Holder, nil
}
