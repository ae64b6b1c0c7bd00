#!/usr/bin/env bash
# build.sh MODULE OUT NAME=PACKAGE...: builds programs of the Go module in the directory
# MODULE into the directory OUT, those that are missing or older than the module, and
# shows how far it is. A program of the right version that is installed already, in
# $KUBEBUILDER_ASSETS or $PATH, is linked to instead. A NAME that ends with .test is the test program of
# its package.
set -euo pipefail
module=$1 out=$2
shift 2
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$module"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
# The compiler takes a quarter less time with a larger heap, and without debug
# information, which -s -w leaves out of the program anyway.
export GOGC="${GOGC:-400}"
flags=(-trimpath "-gcflags=all=-dwarf=false")

# version MODULE: its version according to go.mod.
version() { go list -m -f '{{.Version}}' "$1" 2>/dev/null; }

# installed NAME: a program of that name and the version wanted, down to the minor, or nothing.
installed() {
  local name=$1 want says path
  case $name in
  etcd) want=$(version go.etcd.io/etcd/server/v3) says=--version ;;
  kubectl) want=$(version k8s.io/kubernetes) says='version --client' ;;
  kube*) want=$(version k8s.io/kubernetes) says=--version ;;
  *) return 0 ;;
  esac
  want=${want#v}
  for path in "${KUBEBUILDER_ASSETS:+$KUBEBUILDER_ASSETS/$name}" "$(command -v "$name" || true)"; do
    # shellcheck disable=SC2086 # words
    if [ -n "$path" ] && [ -x "$path" ] && "$path" $says 2>/dev/null | grep -qE "[ v]${want%.*}\.[0-9]"; then
      echo "$path"
      return 0
    fi
  done
}

# progress WHAT TOTAL: counts lines, and shows that on a terminal at once, elsewhere
# every half minute. TOTAL 0 is not known.
progress() {
  local what=$1 total=$2 n=0 shown=-1 begin=$SECONDS of
  [ "$total" = 0 ] && of= || of=" of $total"
  while read -r _; do
    n=$((n + 1))
    if [ -t 2 ]; then
      printf '\r\033[K  %s: %d%s, %d s' "$what" "$n" "$of" $((SECONDS - begin)) >&2
    elif [ $(((SECONDS - begin) / 30)) -gt "$shown" ] && [ "$SECONDS" -gt $((begin + 5)) ]; then
      shown=$(((SECONDS - begin) / 30))
      printf '  %s: %d%s, %d s\n' "$what" "$n" "$of" $((SECONDS - begin)) >&2
    fi
  done
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
}

# current NAME PACKAGE: whether what was built last is still right.
current() {
  local target=$out/$1
  [ -x "$target" ] && ! [ -L "$target" ] && [ "$target" -nt go.mod ] && [ "$target" -nt go.sum ] || return 1
  case $2 in
  ./*) [ -z "$(find "$2" -name '*.go' -newer "$target")" ] ;;
  esac
}

names=() packages=()
for program; do
  name=${program%%=*} package=${program#*=}
  current "$name" "$package" && continue
  found=$(installed "$name")
  if [ -n "$found" ]; then
    ln -sf "$found" "$out/$name"
    echo "using $found"
    continue
  fi
  names+=("$name") packages+=("$package")
done
[ ${#names[@]} -gt 0 ] || exit 0

ldflags='-s -w'
if kubernetes=$(version k8s.io/kubernetes); then
  minor=${kubernetes#v1.}
  ldflags+="
   -X k8s.io/component-base/version.gitVersion=$kubernetes
   -X k8s.io/component-base/version.gitMajor=1
   -X k8s.io/component-base/version.gitMinor=${minor%%.*}
   -X k8s.io/component-base/version.gitTreeState=clean
   -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
fi
flags+=(-ldflags "$ldflags ${LDFLAGS-}")

begin=$SECONDS
echo "building ${names[*]}"
log=$(mktemp)
new=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$log" "$new"' EXIT
# fails shows why a step failed.
fails() { grep -v '^go: downloading' "$log" >&2; exit 1; }

tests=() programs=()
for i in "${!packages[@]}"; do
  case ${names[$i]} in
  *.test) tests+=("${names[$i]}=${packages[$i]}") ;;
  *) programs+=("${names[$i]}=${packages[$i]}") ;;
  esac
done
[ ${#tests[@]} = 0 ] && dependencies=(-deps) || dependencies=(-deps -test)

go list "${dependencies[@]}" "${packages[@]}" 2>&1 >/dev/null | tee "$log" | progress "modules downloaded" 0 || fails
stale=$(go list "${dependencies[@]}" -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${flags[@]}" "${packages[@]}" 2>/dev/null | grep -c . || true)
# compiled COMMAND...: runs a go command that prints the packages it compiles.
compiled() { "$@" 2>&1 | tee "$log" | progress "packages compiled" "$stale" || fails; }

# All in one go, so that no core waits for a linker.
[ ${#programs[@]} = 0 ] || compiled go build -v "${flags[@]}" -o "$new/" "${programs[@]#*=}"
for program in ${tests[@]+"${tests[@]}"}; do
  compiled go test -c -v -vet=off "${flags[@]}" -o "$new/${program%%=*}" "${program#*=}"
done
for program in ${programs[@]+"${programs[@]}"} ${tests[@]+"${tests[@]}"}; do
  name=${program%%=*} built=$name
  case $name in
  *.test) ;;
  # The name that go build gives: the last element of the path that is no major version.
  *) built=$(go list -f '{{.ImportPath}}' "${program#*=}" | sed -E 's#/v[0-9]+$##; s#.*/##') ;;
  esac
  rm -f "$out/$name"
  mv "$new/$built" "$out/$name" # an interrupted build leaves no half program
  touch "$out/$name"            # it may be older than a go.mod that was checked out meanwhile
done
printf '%5ds  built %s\n' $((SECONDS - begin)) "${names[*]}"
