#!/usr/bin/env bash
# build.sh MODULE OUT NAME=PACKAGE...: builds programs of the Go module in the directory MODULE into the directory
# OUT, those that are missing or older than the module, and shows how far it is. A NAME that ends with .test is the
# test program of its package.
set -euo pipefail
module=$1 out=$2
shift 2
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$module"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
# What makes the compiler quicker, in CPU time of k8s.io/api/core/v1 and of k8s.io/kubernetes' validation: no debug
# information, which -s -w leaves out of the program anyway (14.6 to 11.7 s), and GCFLAGS=-l, no inlining (11.7 to
# 9.2 s, 7.8 to 4.1 s), for programs that need not be fast. -N beside -l, and GOGC=off or 100, save nothing more.
export GOGC="${GOGC:-400}"
flags=(-trimpath "-gcflags=all=-dwarf=false ${GCFLAGS-}")

# current NAME PACKAGE: whether what was built last is still right.
current() {
  local target=$out/$1
  [ -x "$target" ] && [ "$target" -nt go.mod ] && [ "$target" -nt go.sum ] || return 1
  case $2 in
  .*) [ -z "$(find "$2" -name '*.go' -newer "$target")" ] ;;
  esac
}

wanted=()
for program; do
  current "${program%%=*}" "${program#*=}" || wanted+=("$program")
done
[ ${#wanted[@]} -gt 0 ] || exit 0

ldflags='-s -w'
if kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null); then
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
echo "building ${wanted[*]%%=*}"
new=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$new"' EXIT
export GOTMPDIR=$new # an interrupted go build leaves its files

# progress WHAT OF: counts lines, and shows that on a terminal at once, elsewhere every half minute. The lines are kept
# for when the command fails. Ctrl-C ends the command that writes them, and this after it.
progress() {
  trap '' INT
  local what=$1 of=$2 n=0 shown=0 start=$SECONDS
  while read -r line; do
    n=$((n + 1))
    echo "$line" >&3
    if [ -t 2 ]; then
      printf '\r\033[K  %s: %d%s, %d s' "$what" "$n" "$of" $((SECONDS - start)) >&2
    elif [ $(((SECONDS - start) / 30)) -gt "$shown" ]; then
      shown=$(((SECONDS - start) / 30))
      printf '  %s: %d%s, %d s\n' "$what" "$n" "$of" $((SECONDS - start)) >&2
    fi
  done 3>"$new/log"
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
}
# fails shows why a step failed: what it has printed but for modules downloaded and packages compiled.
fails() {
  grep -v -e '^go: downloading' -e '^[^ ]*$' "$new/log" >&2
  exit 1
}

tests=() programs=() deps=(-deps)
for program in "${wanted[@]}"; do
  case $program in
  *.test=*) tests+=("$program") deps=(-deps -test) ;;
  *) programs+=("$program") ;;
  esac
done
{ go list "${deps[@]}" "${wanted[@]#*=}" 2>&1 >"$new/list"; } | progress "modules downloaded" "" || fails
compiled() { "$@" 2>&1 | progress "packages compiled" " of $(wc -l <"$new/list") at most" || fails; }

# All in one go, so that no core waits for a linker.
[ ${#programs[@]} = 0 ] || compiled go build -v "${flags[@]}" -o "$new/" "${programs[@]#*=}"
for program in ${tests[@]+"${tests[@]}"}; do
  compiled go test -c -v -vet=off "${flags[@]}" -o "$new/${program%%=*}" "${program#*=}"
done
for program in "${wanted[@]}"; do
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
printf '%5ds  built %s\n' $((SECONDS - begin)) "${wanted[*]%%=*}"
