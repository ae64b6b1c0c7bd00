#!/bin/sh
# build.sh: has the program that the lab is made of in <repo>/bin/parts, under each of its names: it is built if it is
# missing or older than this module.
set -eu
cd "$(dirname "$0")"
out=../../../bin/parts
../build.sh . $out controlplane=.
for name in etcd kube-apiserver endpointslices kube-proxy kubectl; do
  [ "$(readlink $out/$name)" = controlplane ] || ln -sf controlplane $out/$name
done
