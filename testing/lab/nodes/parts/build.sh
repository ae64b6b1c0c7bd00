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

# Helm, which renders the chart in tests. They do without where its modules can't be had.
helm=v3.19.2
if [ ! -x "$out/helm" ] || [ "$out/helm" -ot build.sh ]; then
  begin=$(date +%s)
  if GOBIN=$(cd "$out" && pwd) CGO_ENABLED=0 nice go install "helm.sh/helm/v3/cmd/helm@$helm"; then
    printf '%5ds  %s\n' $(($(date +%s) - begin)) "built helm"
  else
    echo "helm $helm can't be had; the chart is not tested"
  fi
fi
