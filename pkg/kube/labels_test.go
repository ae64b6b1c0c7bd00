package kube

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestManyLabels: Node Feature Discovery gives a Node a hundred labels and more, which come before those of topology and of the operator by
// name. Selectors of pools see all of a Node and a Namespace, which tenants can't write, and the first 64 of a Service.
func TestManyLabels(t *testing.T) {
	c, err := New(&rest.Config{Host: "https://192.0.2.1:6443"}, Options{
		Node: "n1", Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeLeases: func() {},
		Pools: vip.Key{Namespace: "kube-system", Name: "kubevip"},
	})
	check.OK(t, err)
	labels := map[string]string{"topology.kubernetes.io/zone": "a"}
	for i := range 150 {
		labels[fmt.Sprint("feature.node.kubernetes.io/cpu-cpuid.", i)] = "true"
	}
	node, namespace, service := &corev1.Node{}, &corev1.Namespace{}, loadBalancer("web", "")
	node.Name, node.Labels, namespace.Name, namespace.Labels, service.Labels = "n1", labels, "blue", labels, labels
	check.OK(t, c.nodes.Add(node))
	check.OK(t, c.namespaces.Add(namespace))
	check.OK(t, c.services.Add(service))
	check.OK(t, c.configMaps.Add(&corev1.ConfigMap{ObjectMeta: loadBalancer("kubevip", "").ObjectMeta}))
	c.o.Pools.Namespace = "default"
	w := observe(c)
	if got := w.Nodes[0].Labels["topology.kubernetes.io/zone"]; got != "a" {
		t.Errorf("the zone of the Node is %q", got)
	}
	if got := w.Pools.Namespaces["blue"]["topology.kubernetes.io/zone"]; got != "a" {
		t.Errorf("the zone of the Namespace is %q", got)
	}
	if n := len(w.Services[0].Labels); n != 64 {
		t.Errorf("%d labels of the Service", n)
	}
}
