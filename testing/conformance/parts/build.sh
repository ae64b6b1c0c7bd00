#!/bin/sh
# build.sh: has Kubernetes' own end-to-end tests and the program of their pods in <repo>/bin/parts: those that
# are missing or older than this module are built. Ten minutes from an empty Go cache.
set -eu
cd "$(dirname "$0")"
exec ../../lab/build.sh . ../../../bin/parts \
  e2e.test=k8s.io/kubernetes/test/e2e \
  agnhost=k8s.io/kubernetes/test/images/agnhost
