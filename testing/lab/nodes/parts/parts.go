//go:build parts

// Package parts pins the programs a real node is made of, and what a cluster of
// such nodes needs beside the programs of testing/lab/parts: kubelet, scheduler,
// controller-manager and kubeadm. It is a module of its own, so that a change here rebuilds nothing there.
package parts

import (
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
