#!/usr/bin/env bash
# demo.sh: builds what the demo is made of and runs it. Modules of the control plane are downloaded, and packages of
# Debian installed, beside the compilation of Herald, whose packages the control plane shares.
set -euo pipefail
cd "$(dirname "$0")/../.."
testing/lab/deps.sh demo & # Ctrl-C does not reach what runs beside: packages are installed to the end
packages=$!
GOMAXPROCS=8 go -C testing/lab/parts mod download 2>/dev/null & # so many at a time; the build reports what fails
downloads=$!
trap 'kill $downloads 2>/dev/null || true; wait' EXIT

rm -rf bin/quick
export GCFLAGS=-l # a third less to compile; the Herald that "make build" makes is another
LDFLAGS="-X main.version=${VERSION:-devel}" testing/lab/build.sh . bin/quick herald=./cmd/herald demo=./testing/demo
testing/lab/parts/build.sh
wait $packages
bin/quick/demo -herald bin/quick/herald
