#!/usr/bin/env bash
# test.sh: everything that must hold, phase by phase, a line for each.
#
#   test.sh lint   what reads the code: gofmt, go vet, staticcheck, shellcheck, govulncheck
#   test.sh unit   the tests that need no lab, with the race detector
#   test.sh fuzz   every fuzz target, all together for as long as HERALD_FUZZ says: 1h, 20m, 300s
#   test.sh lab    the tests in network namespaces (root)
#   test.sh all    all of that, after installing and building what it needs (root)
#
# A phase that fails does not keep the next from running. The exit status is 1 if
# any failed.
# shellcheck disable=SC2317 # the phases are called by way of quiet, loud and needed
set -euo pipefail
cd "$(dirname "$0")/.."

# Pinned, so that a new release does not find fault with an old commit.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.8.0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/skips"
failed=()

# line NAME RESULT SECONDS [WHY]
line() { printf '%-34s %-7s %5ds  %s\n' "$1" "$2" "$3" "${4-}"; }

# quiet NAME COMMAND...: runs a phase, and shows its output only if it fails.
quiet() {
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1 </dev/null; then
    line "$name" ok $((SECONDS - begin))
  else
    cat "$work/log"
    line "$name" FAILED $((SECONDS - begin))
    failed+=("$name")
  fi
}

# loud NAME COMMAND...: runs a phase that takes minutes, and shows how it goes.
loud() {
  local name=$1 begin=$SECONDS
  shift
  echo "$name:"
  if "$@" </dev/null; then
    line "$name" ok $((SECONDS - begin))
  else
    line "$name" FAILED $((SECONDS - begin))
    failed+=("$name")
  fi
}

# needed NAME COMMAND...: a loud phase without which nothing else makes sense.
needed() {
  loud "$@"
  if [ ${#failed[@]} -gt 0 ]; then
    summary
  fi
}

skip() { # NAME WHY
  line "$1" skipped 0 "$2"
  echo "$1: $2" >>"$work/skips"
}

formatted() {
  local files
  files=$(find cmd manifests pkg testing -name '*.go' -exec gofmt -l {} +)
  [ -z "$files" ] || { echo "not formatted (gofmt -w):" && echo "$files" && return 1; }
}

# scripts: those for sh run on Debian, whose sh has -nt (SC3013).
scripts() { find testing -name '*.sh' -not -path '*/testdata/*' -exec shellcheck -e SC3013 .ci/run {} +; }

# vulnerabilities: the database is on the network, which a test may not have.
vulnerabilities() {
  local name="govulncheck" begin=$SECONDS
  if ! GOBIN=$work go install "$govulncheck" >"$work/log" 2>&1; then
    skip "$name" "$govulncheck can't be had: $(tail -n 1 "$work/log")"
  elif timeout 300 "$work/govulncheck" ./... >"$work/log" 2>&1 </dev/null; then
    line "$name" ok $((SECONDS - begin))
  elif grep -q 'fetching vulnerabilities' "$work/log"; then
    skip "$name" "its database, vuln.go.dev, can't be reached"
  else
    cat "$work/log"
    line "$name" FAILED $((SECONDS - begin))
    failed+=("$name")
  fi
}

lint() {
  quiet "gofmt" formatted
  quiet "go vet" go vet ./...
  quiet "go vet, of the image's builder" go -C manifests/image vet ./...
  quiet "staticcheck" go run "$staticcheck" -checks all,-ST1000 ./...
  if command -v shellcheck >/dev/null; then
    quiet "shellcheck" scripts
  else
    skip "shellcheck" "it is not installed (apt-get install shellcheck)"
  fi
  vulnerabilities
}

# tests FLAGS... PACKAGES...: go test, told in short by testing/tally. The first
# word may be -each, which is tally's.
tests() {
  local each=()
  if [ "$1" = -each ]; then
    each=(-each)
    shift
  fi
  [ -x "$work/tally" ] || go build -o "$work/tally" ./testing/tally
  go test -json "$@" 2>&1 | "$work/tally" ${each[@]+"${each[@]}"} -skips "$work/skips" -failures "$work/failures"
}

# inLab: the packages whose code or tests use the lab.
inLab() {
  go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./testing/... |
    awk '/herald\/testing\/lab/ { print $1 }'
}

unit() {
  local packages
  # Those that take minutes first, so that no core is idle at the end.
  mapfile -t packages < <(go list ./pkg/peers ./pkg/lease ./pkg/kube ./... | awk '!seen[$0]++' | grep -vxF "$(inLab)" | grep -v '/testing/simulation$')
  loud "tests without a lab" tests -race -timeout 10m "${packages[@]}"
  # Without the race detector, with which it takes five times as long; what it runs of pkg is run with it above.
  loud "the simulation" tests -timeout 10m ./testing/simulation
  fuzz "${HERALD_HURRY:+2}"
  if command -v spin >/dev/null; then
    quiet "the model of ownership" testing/model/check.sh
  else
    skip "the model of ownership" "spin is not installed (apt-get install spin)"
  fi
  quiet "the image, twice the same" go -C manifests/image test -timeout 5m ./...
}

# fuzz SECONDS: runs every fuzz target for so long, as many at once as there are cores. What is
# found is written to testdata/fuzz of the package, and is a test from then on.
fuzz() {
  local package dir targets=()
  mkdir -p "$work/fuzz"
  while read -r dir; do
    package=$work/fuzz/${dir//\//-}.test
    if ! go test -c -fuzz=. -o "$package" "./$dir" >"$work/log" 2>&1; then
      cat "$work/log"
      line "$dir: the fuzz targets" FAILED 0 "they can't be built"
      failed+=("$dir: the fuzz targets")
      continue
    fi
    mapfile -t -O "${#targets[@]}" targets < <(cd "$dir" && "$package" -test.list '^Fuzz' | grep '^Fuzz' | sed "s|^|$dir |")
  done < <(find cmd pkg testing -name '*_test.go' -exec grep -lZ '^func Fuzz' {} + | xargs -0 -n 1 dirname | sort -u)
  local seconds=${1:-5} jobs
  jobs=$(nproc)
  if [ "$seconds" = share ]; then # of the time for all
    seconds=$(($(inSeconds "${HERALD_FUZZ-10m}") * jobs / ${#targets[@]} + 1))
  fi
  export -f line fuzzTarget
  export work
  printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -L 1 bash -c 'fuzzTarget "$@"' fuzzTarget "$seconds"
  if [ -s "$work/fuzz/failed" ]; then
    mapfile -t -O "${#failed[@]}" failed <"$work/fuzz/failed"
  fi
}

# fuzzTarget SECONDS DIRECTORY TARGET: runs one, for fuzz.
fuzzTarget() {
  local seconds=$1 dir=$2 target=$3 begin=$SECONDS log=$work/fuzz/${2//\//-}-$3.log
  cd "$dir" || return
  if "$work/fuzz/${dir//\//-}.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${seconds}s" -test.fuzzminimizetime 10x -test.parallel 1 \
    -test.fuzzcachedir "$(go env GOCACHE)/fuzz/$dir" -test.timeout $((seconds + 180))s >"$log" 2>&1 </dev/null; then
    line "$dir: $target" ok $((SECONDS - begin)) "$(sed -n 's/.*execs: \([0-9]*\) .*/\1 inputs/p' "$log" | tail -n 1)"
  elif [ "$(grep -v '^fuzz: elapsed: ' "$log" | sed 's/^--- FAIL: .*/failed/' | tr -d '\n')" = "failed    context deadline exceededFAIL" ]; then
    # Nothing was found: before Go 1.27 the end of the time may count as a failure (https://go.dev/issue/75804).
    line "$dir: $target" ok $((SECONDS - begin)) "$(sed -n 's/.*execs: \([0-9]*\) .*/\1 inputs/p' "$log" | tail -n 1), the last one cut off"
  else
    cat "$log"
    line "$dir: $target" FAILED $((SECONDS - begin))
    echo "$dir: $target" >>"$work/fuzz/failed"
  fi
}

# inSeconds DURATION: 90s, 20m or 1h in seconds.
inSeconds() {
  case $1 in
  '' | [!0-9]* | *[!0-9]*[!0-9] | *[!0-9hms]) echo "HERALD_FUZZ is \"$1\"; write a duration such as 1h, 20m or 300s" >&2 && return 1 ;;
  *h) echo $((${1%h} * 3600)) ;;
  *m) echo $((${1%m} * 60)) ;;
  *) echo "${1%s}" ;;
  esac
}

# lab: one package after the other, since there is one lab on a machine.
lab() {
  local packages
  mapfile -t packages < <(inLab | grep -v '/testing/nodes$')
  local not="TestIPv6Only.*|TestTroubleshootingWalk" large="TestBGPThousand|TestDHCPHundred|TestFloods|TestHundred"
  if late 15; then # four minutes, for more of what other tests have a little of
    not+="|$large"
    skip "large tests (${large//|/, })" "this run had taken 15 minutes before the lab (make test without HERALD_HURRY runs them)"
  fi
  loud "tests in the lab" tests -each -count=1 -p 1 -timeout 30m -skip "^($not)\$" "${packages[@]}"
  # What depends on kube-proxy, once more with its other mode.
  if late 40; then
    skip "again, with kube-proxy in iptables mode" "this run has taken 40 minutes already (make test without HERALD_HURRY runs them)"
  else
    HERALD_PROXY_MODE=iptables loud "again, with kube-proxy in iptables mode" tests -each -count=1 -timeout 10m \
      -run '^(TestCreatedAndTakenAway|TestIPMode|TestLocal|TestLocalRollingUpdate|TestTerminated|TestDualStack|TestKubectlExpose|TestDHCPExpose|TestDHCPMoves)$' ./testing/e2e
  fi
  HERALD_FAMILY=6 loud "again, in a cluster without IPv4" tests -each -count=1 -timeout 10m -run '^(TestIPv6Only.*)$' ./testing/e2e
  if ! [ -x bin/parts/kubelet ]; then
    skip "tests on real nodes" "their programs are not built (testing/lab/nodes/parts/build.sh, then make test-nodes)"
  elif late 28; then
    skip "tests on real nodes" "this run has taken 28 minutes already (make test-nodes runs them alone)"
  else
    loud "tests on real nodes" tests -each -count=1 -timeout 20m ./testing/nodes
  fi
}

# late MINUTES: whether this run has taken so long, where it must not take too long
# (HERALD_HURRY). On a machine that has nothing cached, building takes as long as the tests.
late() { [ -n "${HERALD_HURRY-}" ] && [ "$SECONDS" -gt $(($1 * 60)) ]; }

root() {
  [ "$(id -u)" = 0 ] || {
    echo "This needs root: the lab is made of network namespaces. \"make lint unit\" does without." >&2
    exit 1
  }
}

packages() { # what Debian has, where it is missing
  local missing=()
  command -v shellcheck >/dev/null || missing+=(shellcheck)
  command -v spin >/dev/null || missing+=(spin)
  command -v gcc >/dev/null || missing+=(gcc libc6-dev) # the race detector links with it
  if [ ${#missing[@]} -gt 0 ]; then
    apt-get -qq update &&
      DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null || return
  fi
  testing/lab/deps.sh
}

summary() {
  echo
  if [ -s "$work/skips" ]; then
    echo "Skipped:"
    sort -u "$work/skips" | sed 's/^/  /'
  else
    echo "Nothing was skipped."
  fi
  if [ ${#failed[@]} -gt 0 ]; then
    if [ -s "$work/failures" ]; then
      echo "Failed:"
      sed 's/^/  /' "$work/failures"
    fi
    echo "FAILED after $((SECONDS / 60)) min $((SECONDS % 60)) s:$(printf ' %s;' "${failed[@]}")"
    exit 1
  fi
  echo "All is well after $((SECONDS / 60)) min $((SECONDS % 60)) s."
  exit 0
}

case ${1-} in
lint) lint ;;
unit) unit ;;
fuzz)
  inSeconds "${HERALD_FUZZ-10m}" >/dev/null
  fuzz share
  ;;
lab)
  root
  export HERALD_LAB=require
  lab
  ;;
all)
  root
  export HERALD_LAB=require
  needed "packages" packages
  needed "programs of the lab" testing/lab/parts/build.sh
  if late 3; then
    skip "programs of real nodes" "those of the lab took so long that nothing can have been cached; these would take five minutes more"
  else
    needed "programs of real nodes" testing/lab/nodes/parts/build.sh
  fi
  needed "bin/herald" make build
  lint
  unit
  lab
  ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
summary
