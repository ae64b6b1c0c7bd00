#!/usr/bin/env bash
# test.sh: what must hold, phase by phase, a line for each.
#
#   test.sh quick  what a change can break at once: lint, units, and one test in the lab for each promise of the README
#   test.sh rest   all that quick leaves out
#   test.sh all    both
#   test.sh lint   what reads the code: gofmt, go vet, staticcheck, shellcheck
#   test.sh unit   the tests that need no lab
#   test.sh beside quick|rest
#                  what of them needs nothing but CPU: it runs beside tests in the lab, which wait much
#   test.sh lab    tests in the lab that the rest runs in a second lab, beside the first
#   test.sh fuzz   every fuzz target, all together for as long as HERALD_FUZZ says: 1h, 20m, 300s
#
# quick, rest and all need root, and install and build what they need. A phase that fails does not keep the next from
# running. The exit status is 1 if any failed. With HERALD_UNTIL=SECONDS (since 1970) a phase that would not be over by
# then is left out.
# shellcheck disable=SC2317 # the phases are called by way of quiet, loud and needed
set -euo pipefail
cd "$(dirname "$0")/.."

# Pinned, so that a new release does not find fault with an old commit.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.8.0
gotestsum=gotest.tools/gotestsum@v1.13.0

# The tests in the lab for what the README promises.
promises=(
  CreatedAndTakenAway KubectlExpose DualStack SamePort IPMode Local Pools # a Service gets its VIP
  CutOff Killed OneOwner APIServerAway                                            # one owner, whatever fails
  Terminated Drain ConnectionsSurviveMoves                                        # make before break
  BadInput Uninstalled LeastRights                                                # it says why, and needs little
  Migration APIServersBalanced BGPByBIRD DHCPExpose UPnP Egress                   # what it does besides
)
# More of what other tests in the lab have a little of: three minutes.
large='^(TestDHCPHundred|TestFloods|TestHundred)$'
# Those whose outcome depends on kube-proxy.
proxied='^(TestCreatedAndTakenAway|TestIPMode|TestLocal|TestLocalRollingUpdate|TestTerminated|TestDualStack|TestKubectlExpose|TestDHCPExpose|TestDHCPMoves)$'

work=$(mktemp -d)
chmod a+x "$work" # FRR runs as a user of its own
trap 'stop; rm -rf "$work"' EXIT
trap 'echo; echo "interrupted"; exit 130' INT TERM
touch "$work/skips" "$work/failures"
failed=()
declare -A beside # what runs beside this: process groups by name
within=           # what go test is run by: apart, for one of two labs
exec {never}<> <(:) # nothing is ever read from it

# line NAME RESULT SECONDS [WHY]
line() { printf '%-34s %-7s %5ds  %s\n' "$1" "$2" "$3" "${4-}"; }

# result NAME BEGIN STATUS: the line of a phase that has ended.
result() {
  if [ "$3" = 0 ]; then
    line "$1" ok $((SECONDS - $2))
  else
    line "$1" FAILED $((SECONDS - $2))
    failed+=("$1")
  fi
}

# quiet NAME COMMAND...: runs a phase, shows its output only if it fails, and says twice a minute that it goes on.
quiet() {
  local name=$1 begin=$SECONDS status=0 ticker
  shift
  while ! read -rt 30 -u "$never"; do echo "  $name: $((SECONDS - begin)) s"; done &
  ticker=$!
  disown # bash tells of no job's end
  "$@" >"$work/log" 2>&1 </dev/null || status=$?
  kill -KILL "$ticker" # not TERM, by which a subshell that has just begun would run the traps of this one
  [ "$status" = 0 ] || cat "$work/log"
  result "$name" "$begin" "$status"
}

# loud NAME COMMAND...: runs a phase that shows by itself how it goes.
loud() {
  local name=$1 begin=$SECONDS status=0
  shift
  echo "$name:"
  "$@" </dev/null || status=$?
  result "$name" "$begin" "$status"
}

# needed NAME COMMAND...: a loud phase without which nothing else makes sense.
needed() {
  loud "$@"
  [ ${#failed[@]} = 0 ] || summary
}

# Before a command: it runs when nothing else would. Where the kernel has autogroups (sched(7)), nice counts only within a
# session, and start makes one.
lowest=(sh -c '{ echo 19 >/proc/$$/autogroup; } 2>/dev/null; exec nice -n 19 "$@"' lowest)

# start NAME COMMAND...: runs a command beside what follows; finish shows what it said, and waits for it.
start() {
  setsid "${@:2}" >"$work/$1" 2>&1 </dev/null &
  beside[$1]=$!
}

finish() {
  local status=0
  wait "${beside[$1]}" || status=$?
  unset "beside[$1]"
  echo "$1:"
  sed '/^All is well\|^FAILED after\|^Nothing was left out/d; s/^/  /' "$work/$1"
  [ "$status" = 0 ] || failed+=("$1")
}

# stop ends what still runs beside this: a lab goes by itself then.
stop() {
  for name in "${!beside[@]}"; do kill -TERM -- "-${beside[$name]}" 2>/dev/null && wait "${beside[$name]}"; done || true
}

# apart COMMAND...: with names of network namespaces, temporary files and cgroups that no other lab sees.
apart() {
  mkdir "$work/tmp"
  # shellcheck disable=SC2016 # the inner shell's
  TMPDIR=$work/tmp unshare --mount sh -c 'mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"' apart "$@"
}

skip() { # NAME WHY
  line "$1" skipped 0 "$2"
  echo "$1: $2" >>"$work/skips"
}

# fits MINUTES NAME: whether a phase that takes so long on two cores is over by HERALD_UNTIL. If not, it is skipped.
fits() {
  local left=$(((${HERALD_UNTIL:-0} - $(date +%s)) / 60))
  if [ -n "${HERALD_UNTIL-}" ] && [ "$left" -lt "$1" ]; then
    skip "$2" "it takes $1 minutes, and $((left > 0 ? left : 0)) are left (make test-all runs it)"
    return 1
  fi
}

formatted() {
  local files
  files=$(find cmd manifests pkg testing -name '*.go' -exec gofmt -l {} +)
  [ -z "$files" ] || { echo "not formatted (gofmt -w):" && echo "$files" && return 1; }
}

# scripts: those for sh run on Debian, whose sh has -nt (SC3013).
scripts() { find testing manifests -name '*.sh' -not -path '*/testdata/*' -exec shellcheck -e SC3013 .ci/run {} +; }

# checked FLAGS...: half of its time, and go vet's, is for collecting garbage otherwise; they take 1 GB so.
checked() { env GOGC=400 go run "$staticcheck" -checks all,-ST1000 "$@" ./...; }

# lint FLAGS...: the flags are for staticcheck.
lint() {
  quiet "gofmt" formatted
  quiet "go vet" env GOGC=400 go vet ./...
  quiet "go vet, of the image's builder" go -C manifests/image vet ./...
  quiet "staticcheck${1+ $*}" checked "$@"
  if command -v shellcheck >/dev/null; then
    quiet "shellcheck" scripts
  else
    skip "shellcheck" "it is not installed (apt-get install shellcheck)"
  fi
}

# vulnerabilities: the database is on the network, which a test may not have.
vulnerabilities() {
  if ! GOBIN=$work go install "$govulncheck" >"$work/log" 2>&1; then
    skip "govulncheck" "$govulncheck can't be had: $(tail -n 1 "$work/log")"
    return
  fi
  if timeout 300 "$work/govulncheck" ./... >"$work/log" 2>&1 </dev/null; then
    line "govulncheck" ok 0
  elif grep -q 'fetching vulnerabilities' "$work/log"; then
    skip "govulncheck" "its database, vuln.go.dev, can't be reached"
  else
    cat "$work/log"
    line "govulncheck" FAILED 0
    failed+=("govulncheck")
  fi
}

# tests FORMAT FLAGS... PACKAGES...: go test, told by gotestsum in a line per test (testname) or per package (pkgname). go vet has been run before.
tests() {
  local format=$1 status=0
  shift
  $within go run "$gotestsum" --format "$format" --format-icons text -- -vet=off "$@" 2>&1 | tee -i "$work/log" || status=$?
  sed -n '/^=== Skipped/,/^=== Failed\|^DONE /{/^===  *SKIP: /p;/_test.go:/p}' "$work/log" >>"$work/skips"
  sed -n '/^=== Failed/,$p' "$work/log" | tail -n 200 >>"$work/failures"
  return "$status"
}

# inLab: the packages whose code or tests use the lab.
inLab() {
  go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./testing/... |
    awk '/herald\/testing\/lab/ { print $1 }'
}

# withoutLab: the packages whose tests need no lab, but for the simulation.
withoutLab() { go list ./... | grep -vxF "$(inLab)" | grep -v '/testing/simulation$'; }

# concurrent: the rooms that start goroutines, or share memory with others'.
concurrent() {
  find pkg -name '*.go' -not -name '*_test.go' -exec grep -lE '^\s*go [a-z(]|\.Go\(|errgroup|"sync' {} + |
    sed 's|/[^/]*$||; s|^|github.com/heraldvip/herald/|' | sort -u
}

# raced: the rooms with goroutines, with the race detector, if there is a compiler that it needs. Those that take long first,
# so that no core is idle at the end.
raced() {
  local race=-race
  command -v gcc >/dev/null || { race= && skip "the race detector" "gcc is not installed (apt-get install gcc libc6-dev)"; }
  # shellcheck disable=SC2046,SC2086 # words
  loud "tests of rooms with goroutines" tests pkgname $race -p 3 -timeout 30m $(concurrent | sort -t / -k 5 -r)
}

# others: the tests that need neither the race detector nor a lab.
others() {
  # shellcheck disable=SC2046 # words
  loud "tests of all other packages" tests pkgname -timeout 30m $(withoutLab | grep -vxF "$(concurrent)")
}

# equipped: the tests of rooms that skip those for which "make test" installs no program: Kea, FRR, Chromium. The cache of
# tests does not know that there is one now.
equipped() { tests pkgname -count=1 -race -p 3 -timeout 30m ./pkg/bgp ./pkg/dhcp ./pkg/serve; }

# chart: the tests that render the chart, skipped without Helm.
chart() { testing/lab/nodes/parts/helm.sh && tests pkgname -count=1 -run '^TestChart' ./pkg/manifest; }

# unraced: the packages whose tests others runs without the race detector.
unraced() {
  # shellcheck disable=SC2046 # words
  tests pkgname -race -timeout 30m $(withoutLab | grep -vxF "$(concurrent)")
}

# simulation SEEDS: without the race detector, with which it takes five times as long; what it runs of pkg is run with it above.
simulation() { HERALD_SEEDS=$1 tests pkgname -timeout 30m ./testing/simulation; }

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


# lab MINUTES NAME FLAGS...: tests in the lab, one package after the other, since a lab is alone in its namespaces' names.
lab() {
  local minutes=$1 name=$2
  shift 2
  if fits "$minutes" "$name"; then
    loud "$name" tests testname -count=1 -p 1 -timeout 45m "$@"
  fi
}

# named TEST...: the pattern of go test for them.
named() { local IFS='|' && echo "^Test($*)\$"; }

# promised: the tests of promises exist, every one of them.
promised() {
  local found
  found=$(cat testing/e2e/*_test.go | grep -cE "^func ($(named "${promises[@]}" | tr -d '^$'))\(")
  [ "$found" = ${#promises[@]} ] || { echo "$found of ${#promises[@]} promised tests exist" && return 1; }
}

root() {
  [ "$(id -u)" = 0 ] || {
    echo "This needs root: the lab is made of network namespaces. \"make lint unit\" does without." >&2
    exit 1
  }
}

quick() {
  needed "packages" testing/lab/deps.sh test
  needed "programs of the lab" testing/lab/parts/build.sh
  needed "bin/herald" make build
  quiet "the promised tests exist" promised
  raced
  start "beside the lab" "${lowest[@]}" testing/test.sh beside quick
  HERALD_LAB=require lab 5 "tests in the lab, of what the README promises" -run "$(named "${promises[@]}")" ./testing/e2e
  finish "beside the lab"
}

rest() {
  needed "all packages" testing/lab/deps.sh
  needed "programs of the lab" testing/lab/parts/build.sh
  needed "bin/herald" make build
  export HERALD_LAB=require
  start "beside the labs" "${lowest[@]}" testing/test.sh beside rest
  start "in a second lab" testing/test.sh lab
  # shellcheck disable=SC2046 # words
  within=apart lab 26 "all other tests in the lab" -skip "$(named "${promises[@]}")|^TestIPv6Only|$large" $(inLab | grep -v '/testing/nodes$')
  finish "in a second lab"
  finish "beside the labs"
  if fits 3 "rooms beside Kea, FRR and Chromium"; then loud "rooms beside Kea, FRR and Chromium" equipped; fi
  if fits 5 "govulncheck"; then vulnerabilities; fi
}

# besideQuick and besideRest begin with what shows the most for its time, as secondLab does.
besideQuick() {
  lint -tests=false # with them it takes ten times as long
  others
  loud "a short simulation" simulation 4
}

besideRest() {
  quiet "shellcheck" scripts
  quiet "staticcheck, with tests" checked
  if fits 4 "every fuzz target for 2 s"; then fuzz 2; fi
  if fits 7 "the whole simulation"; then loud "the whole simulation" simulation 20; fi
  if fits 4 "the model of ownership"; then loud "the model of ownership" testing/model/check.sh; fi
  if fits 3 "the image, twice the same"; then quiet "the image, twice the same" go -C manifests/image test -timeout 5m ./...; fi
  if fits 3 "the chart, by Helm"; then loud "the chart, by Helm" chart; fi
  if fits 7 "the other packages, with the race detector"; then loud "the other packages, with the race detector" unraced; fi
}

secondLab() {
  if fits 13 "tests on real nodes"; then
    loud "programs of real nodes" testing/lab/nodes/parts/build.sh
    lab 11 "tests on real nodes" ./testing/nodes
  fi
  HERALD_FAMILY=6 lab 2 "again, in a cluster without IPv4" -run '^TestIPv6Only' ./testing/e2e
  HERALD_PROXY_MODE=iptables lab 3 "again, with kube-proxy in iptables mode" -run "$proxied" ./testing/e2e
  HERALD_ALERTS=all lab 7 "all alerts" -run '^TestAlerts$' ./testing/e2e
  lab 4 "large tests" -run "$large" ./testing/e2e
}

summary() {
  echo
  if [ -s "$work/skips" ]; then
    echo "Left out:"
    sort -u "$work/skips" | sed 's/^/  /'
  else
    echo "Nothing was left out."
  fi
  if [ ${#failed[@]} -gt 0 ]; then
    sed 's/^/  /' "$work/failures"
    echo "FAILED after $((SECONDS / 60)) min $((SECONDS % 60)) s:$(printf ' %s;' "${failed[@]}")"
    exit 1
  fi
  echo "All is well after $((SECONDS / 60)) min $((SECONDS % 60)) s."
  exit 0
}

case ${1-} in
lint) lint ;;
lab) secondLab ;;
beside)
  case ${2-} in quick) besideQuick ;; *) besideRest ;; esac
  ;;
unit)
  raced
  others
  loud "the simulation" simulation 20
  ;;
fuzz)
  inSeconds "${HERALD_FUZZ-10m}" >/dev/null
  fuzz share
  ;;
quick | rest)
  root
  "$1"
  ;;
all)
  root
  quick
  rest
  ;;
*)
  sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$0" >&2
  exit 2
  ;;
esac
summary
