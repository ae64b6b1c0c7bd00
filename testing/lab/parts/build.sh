#!/bin/sh
# build.sh: has the programs the lab is made of in <repo>/bin/parts: those that are
# missing or older than this module are built. Some four minutes from an empty Go cache.
set -eu
cd "$(dirname "$0")"
exec ../build.sh . ../../../bin/parts \
  etcd=go.etcd.io/etcd/server/v3 \
  kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver \
  kube-controller-manager=k8s.io/kubernetes/cmd/kube-controller-manager \
  kube-proxy=k8s.io/kubernetes/cmd/kube-proxy \
  kubectl=k8s.io/kubernetes/cmd/kubectl
