#!/bin/sh
# build.sh: builds the programs of a real node into <repo>/bin/parts, those that
# are missing or older than this module. Two minutes if testing/lab/parts has been
# built before.
set -eu
cd "$(dirname "$0")"
out=$(cd ../../../.. && pwd)/bin/parts
mkdir -p "$out"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
flags="-s -w
 -X k8s.io/component-base/version.gitVersion=$version
 -X k8s.io/component-base/version.gitMajor=1
 -X k8s.io/component-base/version.gitMinor=${minor%%.*}
 -X k8s.io/component-base/version.gitTreeState=clean
 -X k8s.io/client-go/pkg/version.gitVersion=$version"

build() { # NAME PACKAGE [SOURCE]
  target=$out/$1
  if [ -x "$target" ] && [ "$target" -nt go.mod ] && [ "$target" -nt go.sum ] && [ "$target" -nt "${3-go.mod}" ]; then
    return
  fi
  begin=$(date +%s)
  nice go build -trimpath -ldflags "$flags" -o "$target.new" "$2"
  mv "$target.new" "$target" # an interrupted build leaves no half program
  printf '%5ds  %s\n' $(($(date +%s) - begin)) "built bin/parts/$1"
}

build kubelet k8s.io/kubernetes/cmd/kubelet
build kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
build kubeadm k8s.io/kubernetes/cmd/kubeadm
build logind ./logind logind/main.go

# Helm, which renders the chart in tests. They do without where its modules can't be had.
helm=v3.19.2
if [ ! -x "$out/helm" ] || [ "$out/helm" -ot build.sh ]; then
  begin=$(date +%s)
  if GOBIN=$out nice go install "helm.sh/helm/v3/cmd/helm@$helm"; then
    printf '%5ds  %s\n' $(($(date +%s) - begin)) "built bin/parts/helm"
  else
    echo "helm $helm can't be had; the chart is not tested"
  fi
fi
