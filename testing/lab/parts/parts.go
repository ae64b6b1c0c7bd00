//go:build parts

// Package parts pins the programs the lab is made of: a real etcd, API server,
// controller-manager, kube-proxy and kubectl, built from their own modules. It is
// a module of its own so that Herald's stays lean.
package parts

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
