//go:build parts

// Package parts pins the programs of a real node, beside those of testing/lab/parts: kubelet, scheduler,
// controller-manager and kubeadm. Its own module, so that changes rebuild nothing there.
package parts

import (
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
