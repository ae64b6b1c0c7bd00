#!/bin/sh
# check.sh: searches all runs of ownership.pml, location.pml and moves.pml, within their bounds, for one that
# breaks what must hold; then puts mistakes into the model, each of which must be
# found: a check that can't fail proves nothing. It needs spin and a C compiler.
# check.sh leases searches the first two, check.sh moves the last.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bounds=${HERALD_MODEL:--DNODES=2 -DMAXEPOCH=2 -DMAXVERSION=3}
model=ownership.pml
optimize=-O2 order= # how pan is compiled, and in which order it tries what may come next

# search MODEL: prints spin's verdict on one model.
search() {
  # shellcheck disable=SC2086 # several options
  (cd "$work" && spin $bounds -a "$1" >spin.log 2>&1 && cc $optimize -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 $order -o pan pan.c && ./pan -m500000) >"$work/out" 2>&1 || { cat "$work/spin.log" "$work/out"; exit 1; }
  if grep -q 'max search depth too small' "$work/out"; then found="cut short"; fi
  case $(sed -n 's/.*errors: //p' "$work/out") in
    0) found=${found:-none} ;;
    *) found=${found:-fault} ;;
  esac
  states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$work/out")
}

expect() { # NAME WANT SED-SCRIPT
  found=
  sed "$3" "$model" >"$work/model.pml"
  if [ "$2" = fault ] && cmp -s "$model" "$work/model.pml"; then
    echo "$1: the mistake could not be put in"
    exit 1
  fi
  search model.pml
  printf '%-50s %-6s %s states\n' "$1" "$found" "$states"
  [ "$found" = "$2" ] || { tail -30 "$work/out"; exit 1; }
}

leases() {
  expect "as it is" none ''
  expect "a claim is written over any version" fault 's/:: view\[me\].version == version && life\[me\] == epoch/:: life[me] == epoch/'
  expect "a fenced node goes on in its epoch" fault 's/fenced\[me\] || epoch\[me\] == 0 -> epoch\[me\]++; fenced\[me\] = false/fenced[me] || epoch[me] == 0 -> fenced[me] = false; epoch[me] = (epoch[me] == 0 -> 1 : epoch[me])/'
  expect "a claim is void for its age, without a fence" fault 's/(v.holder != NOBODY/(!(v.version == 1 \&\& v.holder != me) \&\& v.holder != NOBODY/'
  expect "a node that finds itself fenced keeps the VIP" fault 's/:: fenced\[me\] || epoch\[me\] != life\[me\] -> answers\[me\] = false; lingers\[me\] = false$/:: fenced[me] || epoch[me] != life[me] -> skip/'
  expect "a transfer counts in any version" fault 's/ \&\& v.moved\[v.holder % NODES\] == v.version//; s/ \&\& moved\[holder % NODES\] == version//'
  expect "a transfer counts in any epoch of its node" fault 's/owner(view\[me\]) == me \&\& claim_of(view\[me\]) == life\[me\] \&\& !view/owner(view[me]) == me \&\& !view/'
  expect "a transfer without an answer, and a write on the VIP lease" fault 's/(doubt\[me\] == 0 || doubt\[me\] != version)/true/'
  model=location.pml
  bounds=${HERALD_MODEL_LOCATION:-}
  expect "where VIP leases are, as it is" none ''
  expect "a node acts before its cache is new enough" fault 's/ready\[me\] = false; acts\[me\] = 0 }/ready[me] = true; acts[me] = 1 }/'
  expect "the next phase waits for nobody" fault 's/^#define all(me).*/#define all(me) (true)/'
  expect "a claim that was not copied is acted on" fault 's/(!moving(view\[me\]) || copying(me) || holds(view\[me\], view\[me\].to, me)))/true)/'
}

moves() {
  # This one is so large that it takes longer to be compiled well than to be run.
  model=moves.pml optimize=-O1
  owner="-DFAULTS=1" gone="-DFAULTS=1 -DGONE" # one thing goes wrong while the owner lives, or is gone
  bounds=$owner
  expect "moves without the API server, as it is" none ''
  bounds=$gone
  expect "moves of what a dead node had, as it is" none ''
  optimize=-O0
  expect "proposals need not be equal" fault 's/n\[a\].all = n\[a\].all \&\& n\[a\].heard\[j\].proposal == n\[a\].proposal/skip/'
  expect "a minority moves" fault 's/!n\[a\].api \&\& n\[a\].enough;/!n[a].api;/'
  expect "nodes move while another reaches the API server" fault 's/holds(a) \&\& !n\[a\].api \&\& n\[a\].enough/holds(a) \&\& n[a].enough/'
  order="-DREVERSE -DT_REVERSE" # finds these sooner
  expect "a node that does not know the moves acquires" fault 's/n\[a\].ready \&\& !n\[a\].unknown/n[a].ready/'
  expect "a node acquires while a heartbeat may be late" fault 's/ \&\& !possible(a)//'
  expect "a move counts in any version" fault 's/(n\[a\].over || n\[a\].version != n\[a\].replaces)/n[a].over/'
  expect "a void claim is not told to its owner" fault 's/^#define voids(a, b) (/#define voids(a, b) (false \&\& /'
}

case ${1-} in
leases) leases ;;
moves) moves ;;
*) # both, on a core each
  code=0
  ./check.sh moves &
  ./check.sh leases || code=1
  wait $! || code=1
  exit "$code"
  ;;
esac
