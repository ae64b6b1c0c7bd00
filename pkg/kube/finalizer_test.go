package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// The finalizer of load balancers is written with the status; those of others stay.
func TestFinalizerWithStatus(t *testing.T) {
	const foreign = "example.com/other"
	for _, tt := range []struct {
		name   string
		have   []string
		going  bool // the Service is being deleted
		change vip.FinalizerChange
		want   []string
	}{
		{"added", nil, false, vip.AddFinalizer, []string{cleanupFinalizer}},
		{"added to others", []string{foreign}, false, vip.AddFinalizer, []string{foreign, cleanupFinalizer}},
		{"there already", []string{cleanupFinalizer, foreign}, false, vip.AddFinalizer, []string{cleanupFinalizer, foreign}},
		{"not added to one that is being deleted", []string{foreign}, true, vip.AddFinalizer, []string{foreign}},
		{"removed", []string{cleanupFinalizer, foreign}, true, vip.RemoveFinalizer, []string{foreign}},
		{"left", []string{cleanupFinalizer}, false, vip.LeaveFinalizer, []string{cleanupFinalizer}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			statusBubble(t, func(t *testing.T, d *statusTest) {
				want := d.fill(1)
				d.edit(serviceKey(0), func(s *corev1.Service) {
					s.Finalizers = tt.have
					if tt.going {
						s.DeletionTimestamp = &metav1.Time{Time: time.Now()}
					}
				})
				advance(time.Second)
				want[0].Finalizer = tt.change
				d.plan(want...)
				advance(time.Second)
				if got := d.at(serviceKey(0)).Finalizers; !slices.Equal(got, tt.want) || d.requests() != 1 || d.written() != 1 {
					t.Errorf("finalizers %v after %d requests, %d written; want %v", got, d.requests(), d.written(), tt.want)
				}
			})
		})
	}
}
