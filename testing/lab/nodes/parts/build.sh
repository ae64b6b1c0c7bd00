#!/bin/sh
# build.sh: has the programs of a real node in <repo>/bin/parts: those that are missing
# or older than this module are built. Some minutes if testing/lab/parts has been built before.
set -eu
cd "$(dirname "$0")"
out=../../../../bin/parts
../../build.sh . "$out" \
  kubelet=k8s.io/kubernetes/cmd/kubelet \
  kube-controller-manager=k8s.io/kubernetes/cmd/kube-controller-manager \
  kube-scheduler=k8s.io/kubernetes/cmd/kube-scheduler \
  kubeadm=k8s.io/kubernetes/cmd/kubeadm

./helm.sh
