#!/bin/sh
# helm.sh: has Helm, which renders the chart in tests, in <repo>/bin/parts. They do without where its modules can't be had.
set -eu
cd "$(dirname "$0")"
out=../../../../bin/parts
helm=v3.19.2
mkdir -p "$out"
if [ ! -x "$out/helm" ] || [ "$out/helm" -ot helm.sh ]; then
  begin=$(date +%s)
  if GOBIN=$(cd "$out" && pwd) CGO_ENABLED=0 nice go install "helm.sh/helm/v3/cmd/helm@$helm"; then
    printf '%5ds  %s\n' $(($(date +%s) - begin)) "built helm"
  else
    echo "helm $helm can't be had; the chart is not tested"
  fi
fi
