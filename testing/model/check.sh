#!/bin/sh
# check.sh: searches all runs of table.pml, within bounds, for one that breaks what must hold; then puts mistakes
# into the model, each of which must be found: a check that can't fail proves nothing. It needs spin and a C compiler.
# A run that was found, and should not be, is shown (note in table.pml).
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp table.pml "$work"
cd "$work"
{ spin -a table.pml && cc -O2 -w -DSAFETY -DNOREDUCE -DVECTORSZ=256 -DMEMLIM=2500 -o pan pan.c; } >out 2>&1 || { cat out; exit 1; }

expect() { # WANT NAME OPTION=VALUE...
  want=$1 name=$2 found="cut short" began=$(date +%s)
  shift 2
  rm -f table.pml.trail
  env "$@" ./pan -m100000 >out 2>&1 || true
  if grep -q 'errors: [1-9]' out && grep -q 'assertion violated' out; then
    found=fault
  elif grep -q 'errors: 0' out && ! grep -q 'Search not completed\|max search depth too small' out; then
    found=none
  fi
  printf '%-65s %-5s %9s states, %s s\n' "$name" "$found" "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' out)" "$(($(date +%s) - began))"
  [ "$found" = "$want" ] || { env "$@" TRAIL=1 ./pan -r table.pml.trail 2>&1 | grep -e ' -> ' -e '^  n'; tail -30 out; exit 1; }
}

expect none "as it is, with two faults" FAULTS=2
expect none "as it is, with a fault while the owner gives the unit away twice" FAULTS=1 GIFTS=2
expect none "as it is, without the API server and the owner, with a fault" AWAY=1 FAULTS=1
expect none "as it is, the same without a fault, and the unit is given away" AWAY=1 GIFTS=1
expect none "as it is, where the owner is cut off, and gives the unit away" AWAY=2 GIFTS=1

mistake() { # NAME MISTAKE OPTION=VALUE...
  name=$1 called=$2
  shift 2
  expect fault "$name" "MISTAKE=$called" "$@"
}
mistake "a write of the table does not compare its number" noCompare GIFTS=2 FAULTS=1
mistake "a process acts before it has read the table in its epoch" notRead GIFTS=2 FAULTS=1
mistake "who gives away answers no more, before its heir is heard" releasedEarly GIFTS=2 FAULTS=1
mistake "without an answer a node goes on as if it had not written" noDoubt GIFTS=2 FAULTS=1
mistake "a read ends a doubt" readEndsDoubt GIFTS=2 FAULTS=1
mistake "what came back is still handed over" givenBackInVain GIFTS=2 FAULTS=1
mistake "an heir does not wait for the old kernel" kernelNotAsked GIFTS=2 FAULTS=1
mistake "the keeper places what has an owner" staleClaim FAULTS=2
mistake "a silent node is fenced before it has given up" fencedEarly FAULTS=2
mistake "a right does not end with the renew deadline" noDeadline FAULTS=2
mistake "epochs are not compared" epochsNotCompared FAULTS=2
mistake "a void claim is not told to its owner" voidNotTold FAULTS=2
mistake "a minority fences and moves" minority FAULTS=2
mistake "an agent that does not follow is not fenced" notFollowed FAULTS=2
mistake "proposals need not be equal" unequal AWAY=1 FAULTS=1
mistake "a move counts with a table of another number" moveInAnyTable AWAY=1 FAULTS=1
mistake "moves are written before the owner is fenced" movesWithoutFence AWAY=1 FAULTS=1
mistake "a node that does not know of moves acts and places" unknownMoves AWAY=1 FAULTS=1
mistake "who begins its next epoch is no voter until the watch shows it" unheardVoters AWAY=1 FAULTS=1
mistake "an heir by the table does not wait for one by agreement" moveOvertaken AWAY=2 GIFTS=1
