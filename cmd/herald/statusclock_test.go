package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/testing/check"
)

// fakeAPI is an API server whose clock shows what clock returns, with these Leases and nothing else.
func fakeAPI(t *testing.T, clock func() time.Time, leases ...coordinationv1.Lease) *rest.Config {
	t.Helper()
	lists := map[string]any{
		"leases":   coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}, Items: leases},
		"services": corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}},
		"nodes":    corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}},
		"events":   corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", clock().UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(lists[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]) // a client that is gone
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

// Neither the clock of the machine on which herald status runs nor that of a node makes a node silent that renews its node lease, or
// hides one that does not: the API server's counts.
func TestStatusByTheClockOfTheAPIServer(t *testing.T) {
	const up = `{"interface":"eth0","links":[{"name":"eth0","up":true}]}`
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		server := func() time.Time { return time.Now().Add(ahead) }
		renewed := func(node string, ago, nodesClock time.Duration) coordinationv1.Lease {
			l := nodeLease(node, 0, up)
			at := server().Add(-ago)
			l.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(nodesClock)))
			l.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "herald", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`)},
				{Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(server())), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
			}
			return *l
		}
		unmanaged := renewed("n6", 2*time.Second, 0)
		unmanaged.ManagedFields = nil
		r := check.Value(takeStatus(t.Context(), fakeAPI(t, server,
			renewed("n1", 2*time.Second, 0), renewed("n2", 2*time.Second, -40*time.Second), renewed("n3", 2*time.Second, 40*time.Second),
			renewed("n4", time.Minute, 0), renewed("n5", time.Minute, time.Minute), unmanaged), "", ""))(t)
		got := make(map[string]string)
		for _, n := range r.Nodes {
			got[n.Node], _, _ = strings.Cut(n.State, " ")
		}
		if want := (map[string]string{"n1": "ok", "n2": "ok", "n3": "ok", "n4": "silent", "n5": "silent", "n6": "ok"}); !maps.Equal(got, want) {
			t.Errorf("the API server's clock is %v ahead: %v, want %v", ahead, got, want)
		}
	}
}
