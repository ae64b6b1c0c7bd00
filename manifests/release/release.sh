#!/usr/bin/env bash
# release.sh [DIRECTORY]: makes what a release consists of, in bin/release or DIRECTORY. Its version is the appVersion of the chart:
#
#   herald_VERSION_linux_ARCH.tar.gz   the program, also as kubectl's plugin
#   herald_VERSION.oci.tar             the image for all architectures
#   herald-VERSION.tgz                 the Helm chart
#   herald.yaml                        the manifest for krew
#   checksums.txt                      SHA-256 of all of these
#
# ARCHS are the architectures (amd64 arm64); IMAGE=no leaves the image out. The same commit gives the same files with the same Go.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^appVersion: //p' manifests/helm/herald/Chart.yaml)
out=${1:-bin/release} archs=${ARCHS:-amd64 arm64} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! grep -qF "## [${version#v}]" CHANGELOG.md; then
  echo "CHANGELOG.md has no section [${version#v}]: this is a draft" >&2
fi
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
when=$(git log -1 --format=%ct 2>/dev/null || echo "${SOURCE_DATE_EPOCH:-0}")

# pack FILE DIRECTORY NAME...: an archive that depends on nothing but what is in it.
pack() {
  local file=$1 dir=$2
  shift 2
  tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$when" -cf - "$@" | gzip -9n >"$out/$file"
}

cp manifests/release/krew.yaml "$work/krew.yaml"
for arch in $archs; do
  mkdir "$work/$arch"
  CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$work/$arch/herald" ./cmd/herald
  cp LICENSE "$work/$arch/"
  file=herald_${version}_linux_$arch.tar.gz
  pack "$file" "$work/$arch" herald LICENSE
  sed -i "s|SHA256_$arch|$(sha256sum "$out/$file" | cut -d' ' -f1)|" "$work/krew.yaml"
done
sed "s|VERSION|$version|g" "$work/krew.yaml" >"$out/herald.yaml"

cp -r manifests/helm/herald "$work/"
cp LICENSE "$work/herald/"
pack "herald-${version#v}.tgz" "$work" herald

if [ "${IMAGE-}" != no ]; then
  # shellcheck disable=SC2086 # words
  platforms=$(printf ',linux/%s' $archs)
  go -C manifests/image run . -source ../.. -o "$out/herald_$version.oci.tar" -version "$version" -platform "${platforms#,}"
fi
(cd "$out" && sha256sum -- * >"$work/checksums.txt" && mv "$work/checksums.txt" .)
ls -l "$out"
