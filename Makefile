# make help lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

.DEFAULT_GOAL := build
.PHONY: build image release test test-all test-nodes test-alerts test-conformance lint unit fuzz parts all-parts simulate demo lab bench soak docs pictures site manifests clean help

build: ## bin/herald, a static binary (the default)
	@rm -f bin/herald && LDFLAGS='-X main.version=$(VERSION)' testing/lab/build.sh . bin herald=./cmd/herald

image: ## bin/herald.oci.tar, the container image for amd64 and arm64 (no docker, no registry)
	go -C manifests/image run . -source ../.. -o ../../bin/herald.oci.tar -version $(VERSION)

release: ## bin/release: programs, image, chart and krew's manifest of the version that the chart names, with checksums
	manifests/release/release.sh

test: ## what a change can break at once: lint, tests, the README's promises in the lab (root; installs what it needs)
	@testing/test.sh quick

test-all: ## everything: all tests in the lab, also with iptables and without IPv4, on real nodes; fuzz, model (root)
	@testing/test.sh all

lint: ## what reads the code: gofmt, go vet, staticcheck, shellcheck
	@testing/test.sh lint

unit: ## the tests that need neither root nor a lab
	@testing/test.sh unit

fuzz: ## every fuzz target, all together for as long as HERALD_FUZZ says (10m)
	@testing/test.sh fuzz

parts: ## what the lab is made of: Debian packages, and etcd, API server... in bin/parts
	@testing/lab/deps.sh test
	@testing/lab/parts/build.sh

all-parts: parts # what all tests need, also those on real nodes
	@testing/lab/deps.sh
	@testing/lab/nodes/parts/build.sh

simulate: ## the simulation with random faults, for as long as HERALD_SIMULATE says (10m), of the size HERALD_LARGE (30,300,1000000)
	HERALD_SEEDS=$${HERALD_SEEDS:-200} go test -count=1 -timeout 0 -skip TestLargeCluster ./testing/simulation
	GOGC=1000 HERALD_SIMULATE=$${HERALD_SIMULATE:-10m} HERALD_LARGE=$${HERALD_LARGE:-30,300,1000000} go test -count=1 -timeout 0 -v -run TestLargeCluster ./testing/simulation

demo: ## shows what Herald does, on a cluster that it brings up and removes (root)
	@VERSION=$(VERSION) testing/demo/demo.sh

test-nodes: build all-parts ## only the tests on real nodes: kubelet, containerd, kubeadm (root)
	HERALD_LAB=require go test -count=1 -timeout 25m -v ./testing/nodes

test-alerts: build all-parts ## only the alerts, each made to fire and to stop, and what herald says meanwhile (root)
	HERALD_LAB=require HERALD_ALERTS=all go test -count=1 -timeout 20m -v -run '^TestAlerts$$' ./testing/e2e

test-conformance: build all-parts ## Kubernetes' own tests of load balancers, on real nodes, by ARP and by BGP (root)
	@testing/lab/deps.sh conformance
	@testing/conformance/parts/build.sh
	go build -o bin/conformance ./testing/conformance
	bin/conformance

lab: build parts ## brings a cluster up, takes commands, and removes it at the end (root)
	@go build -o bin/lab ./testing/lab/cmd/lab
	@bin/lab

bench: build parts ## measures Herald with 10, 100 and 1000 Services (root)
	go run ./testing/bench

SOAK ?= -soak 1h -nodes 5 -services 20
soak: build parts ## makes random faults and watches, as SOAK says (-soak 1h -nodes 5 -services 20; -seed repeats them) (root)
	go run ./testing/bench $(SOAK)

docs: ## docs/reference, from the code
	go test ./pkg/config ./pkg/manifest ./cmd/herald -run '^TestReference$$' -update

pictures: build parts ## docs/failover.svg from what was measured, page.png and graphs.png by Chromium (root, 6 min)
	@testing/lab/deps.sh
	go run ./testing/bench/picture
	@mkdir -p bin/pictures
	HERALD_LAB=require HERALD_SCREENSHOTS=$(CURDIR)/bin/pictures go test -count=1 ./pkg/serve -run '^TestInBrowser$$'
	HERALD_LAB=require HERALD_ALERTS=all HERALD_SCREENSHOTS=$(CURDIR)/bin/pictures go test -count=1 -timeout 20m ./testing/e2e -run '^TestAlerts$$'
	cp bin/pictures/desk.png docs/page.png
	cp bin/pictures/graphs.png docs/graphs.png

site: ## the docs as a site in bin/site (Debian's mkdocs; no network)
	@testing/site.sh

manifests: ## manifests/, from the code
	go test ./pkg/manifest -run '^(TestFiles|TestDerived)$$' -update

clean: ## removes bin/ and what a killed lab left (that needs root)
	@if [ -d .lab ]; then go run ./testing/lab/cmd/lab -sweep; fi
	rm -rf bin .lab

help: ## this list
	@sed -n 's/^\([-a-z]*\):.*## /\1 /p' Makefile | while read -r name about; do printf '  make %-16s %s\n' "$$name" "$$about"; done
