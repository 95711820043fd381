# `make` lists the targets.

# Rustup's directory: programs it installed are found without a new login.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

TRAFFIC ?= bursty
MINUTES ?= 10

.DEFAULT_GOAL := help
# Tests build HiGHS without optimisations, which takes minutes less. Benchmarks have it as it is.
check sources test quick: export CMAKE_TOOLCHAIN_FILE := $(CURDIR)/tools/highs-for-tests.cmake
# Cargo itself uses all cores; two of them would wait for each other's lock.
.NOTPARALLEL:
.PHONY: help deps build release man deb images rack cluster demo test test-cluster quick mutants soak chaos loom check sources bench bench-chains bench-counts bench-cluster bench-flows bench-functions bench-ids bench-changes bench-ingress bench-isolation bench-ports bench-peers bench-external bench-papers bench-compare bench-scaling bench-sim bench-start bench-socket bench-state bench-live-vs-sim bench-profile bench-contention bench-placement bench-prediction bench-serve clean wheel

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

# Only these: another commit would build the program again.
release deb wheel images: export TAILWATER_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)

deps: ## install missing dependencies: Debian packages, and Rust if cargo is missing
	@tools/deps.sh

build: ## the `tailwater` program and libtailwater_nf, optimised
	@tools/deps.sh build
	@cargo build --release --locked -p tailwater -p tailwater-sdk-c

release: ## the program with the solver of `place --optimal` in it, packed as target/tailwater-VERSION-MACHINE.tar.gz; builds HiGHS first, which takes minutes
	@tools/deps.sh build milp
	@tools/release.sh

man: build ## man pages of all commands: target/man; `man -l target/man/tailwater-run.1`
	@target/release/tailwater man-pages target/man

deb: ## a Debian package of the program with the solver and the rack's commands, man pages, completions and a service: target/tailwater_VERSION_MACHINE.deb
	@tools/deps.sh build milp
	@cargo build --release --locked -p tailwater -p tailwater-sdk-c --features tailwater/milp,tailwater/cluster
	@tools/debian.py target/release target

# maturin comes into an environment of its own. Another profile than the release's builds faster: WHEEL="--profile demo".
wheel: ## the Python package with the program in it, for Python 3.9 and later: target/wheels/tailwater-VERSION-cp39-abi3-linux_MACHINE.whl
	@tools/deps.sh build wheel
	@tools/wheel.sh $(WHEEL)

images: ## the program as a container image for a rack on Kubernetes, without a registry: target/tailwater-VERSION.image.tar
	@tools/deps.sh build check
	@cargo build --release --locked -p tailwater --features cluster
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1); \
		tools/image.py target/release/tailwater tailwater:$$version target/tailwater-$$version.image.tar

rack: ## as root: three servers in network namespaces, a switch, a real API server; one thing after another fails, and a table tells what arrived; RACK="--software" has no Open vSwitch
	@tools/deps.sh build check test cluster
	@tools/kubernetes/build.sh
	@cargo build --release --locked -p tailwater --features cluster
	@tools/rack/rack.py target/release/tailwater $(RACK)

# Kubernetes' programs are kept outside of the tree: a quarter of an hour for the first time.
cluster: ## as root: a whole Kubernetes cluster of two nodes, installs the chart there, sends packets through a chain; pods are killed, the chain grows and shrinks, the release is upgraded and uninstalled, and a table tells what arrived. Builds Kubernetes' programs for the first time
	@tools/deps.sh build check test cluster node
	@tools/kubernetes/build.sh kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy helm \
		$$(command -v kubectl >/dev/null || echo kubectl)
	@cargo build --release --locked -p tailwater -p tailwater-sdk-c --features tailwater/cluster
	@tools/cluster/cluster.py target/release/tailwater

# The demo needs none of the optional features, whose dependencies take long to build. A chain of one's own may need them.
demo: ## bursts on one core, and with an auxiliary core by two policies: a table and charts; then six chains on one core; CHAIN=file and TRAFFIC=file run a chain of your own
	@tools/deps.sh build
ifdef CHAIN
	@cargo build --profile demo --locked -p tailwater
	@cargo run --profile demo --locked --quiet -p tailwater -- run $(CHAIN) --traffic $(TRAFFIC)
else
	@cargo build --profile demo --locked --no-default-features -p tailwater
	@mkdir -p target
	@cargo run --profile demo --locked --no-default-features --quiet -p tailwater -- demo --report target/demo.html
	@echo
	@XDG_STATE_HOME=target/demo-state cargo run --profile demo --locked --no-default-features --quiet -p tailwater -- \
		serve examples/server/server.yaml --cores $$(($$(nproc) - 1)) --duration 5s
	@rm -rf target/demo-state
endif

# The program without its features comes first: the tests find the one with them at the same path. Model checks of three
# cores have one preemption instead of two, which take a minute and a half of processor time.
test: ## all tests, and why any were skipped
	@tools/deps.sh build check test ports milp
	@tools/tests.py $(LINT) --beside "env LOOM_MAX_PREEMPTIONS=1 tools/loom.sh" \
		--first "$$(tools/features.sh without) --test ports --test place --test built_without -- without_" \
		$$(tools/features.sh)

# Four minutes of two cores for the first time; the API server is kept outside of the tree.
test-cluster: ## tests of the rack against a real Kubernetes API server, which is built from Go modules (with Go, for minutes) unless it is in ~/.cache/tailwater; etcd is Debian's. `test` runs the same tests against a model of it
	@tools/deps.sh build cluster
	@tools/kubernetes/build.sh
	@TAILWATER_API_SERVER=real cargo test --locked -p tailwater-cluster

quick: ## checks for a change, within a minute: formatting, lints, unit tests of the crates that differ from BASE
	@tools/quick.sh $(BASE)

mutants: ## cargo-mutants on the lines that differ from BASE=main
	@tools/mutants.sh $(BASE)

soak: ## stress test: 1,000 random changes of a loaded server's chains and 50 kills of it, 100 take-overs by a new process, on traces and (as root) on veth pairs, adversarial loads against static RSS in the simulator, then continuous changes of cores, flows and buckets, each for MINUTES=10; exits 1 on more late packets, or any difference from one core; SEED=n repeats a round
	@tools/deps.sh build
	@LIVE_OPERATIONS=1000 LIVE_SEED=$(or $(SEED),1) cargo test --release --locked -p tailwater-server --test live -- --nocapture
	@KILLS=50 cargo test --release --locked -p tailwater --test serve_killed -- --nocapture
	@EXCHANGE_SECONDS=$$(($(MINUTES) * 60)) cargo test --release --locked -p tailwater-dataplane --test many_chains exchange -- --nocapture
	@TAKE_OVERS=100 cargo test --release --locked -p tailwater --test serve_take_over -- --nocapture
	@TAKE_OVERS=1 cargo test --release --locked -p tailwater --test serve_isolated take -- --nocapture
	@TAKE_OVERS=100 cargo test --release --locked -p tailwater --test interfaces processes_take_over -- --nocapture
	@TAKE_OVERS=100 cargo test --release --locked -p tailwater-dataplane --test many_chains take_over -- --nocapture
	@SOAK_MINUTES=$(MINUTES) SOAK_SEED=$(SEED) cargo test --release --locked -p tailwater-sim --test cliffs -- search --nocapture
	@SOAK_MINUTES=$(MINUTES) SOAK_SEED=$(SEED) cargo test --release --locked -p tailwater-dataplane --test soak

chaos: ## fault injection, as root: isolated function processes are killed and stopped at random for MINUTES=10 in each mode, then a hostile function behaves at random for as long; exits 1 if a packet, a binding or a counter is wrong, an innocent function is accused, or a resource leaks; SEED=n repeats a round
	@tools/deps.sh build test
	@CHAOS_SECONDS=$$(($(MINUTES) * 60)) CHAOS_SEED=$(SEED) cargo test --release --locked -p tailwater --test isolation chaos -- --nocapture --test-threads 1
	@CHAOS_SECONDS=$$(($(MINUTES) * 60)) CHAOS_SEED=$(SEED) cargo test --release --locked -p tailwater-isolation --test behaviours affect_only -- --nocapture

loom: ## model checks of the lock-free code that moves packets between cores; also part of `test`
	@tools/deps.sh build
	@tools/loom.sh

# With clippy in the compiler's place and its arguments, documentation is made from the metadata that clippy left.
LINTED = CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ RUSTC_WORKSPACE_WRAPPER=$$(rustc --print sysroot)/bin/clippy-driver

# Everything with every feature. A warning about the program with none of them ends `make test`.
check: sources ## formatting, lints, documentation, imports
	cargo clippy $$(tools/features.sh) --all-targets -- -D warnings
	$(LINTED) RUSTDOCFLAGS="-D warnings" cargo doc $$(tools/features.sh) --no-deps

# The part of `check` for which nothing of the workspace is built. `make test LINT=--lint` does the rest while it builds.
sources: ## formatting, imports, features of libraries, links, scripts
	@tools/deps.sh build check ports milp
	@tools/check-imports.py
	@tools/check-features.py
	cargo fmt --all --check
	cargo fmt --manifest-path examples/functions/dns-filter/Cargo.toml --check
	cargo clippy --locked --manifest-path examples/functions/dns-filter/Cargo.toml --all-targets -- -D warnings
	@tools/check-links.sh
	@tools/check-shell.sh

bench: bench-functions bench-chains ## short set of benchmarks: a JSON line per result

bench-chains: ## throughput, instructions, branches, cache misses and allocations of whole chains, with traffic of one protocol and mixed
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench chains

bench-counts: ## the counts of bench-chains compared with crates/dataplane/benches/counts.txt: exits 1 and names the rows that got worse; COUNTS="--accept 'why'" writes them, COUNTS="nat acl" counts some chains
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench chains -- counts $(COUNTS)

bench-ports: ## the chains of bench-chains over DPDK's rings and shared memory, compared with the trace NIC and DPDK's own forwarding; as root, packet sockets compared with DPDK's
	@tools/deps.sh build bench ports
	@cargo bench --locked -p tailwater-dataplane --features dpdk --bench ports
	@cargo bench --locked -p tailwater-dataplane --features dpdk --bench interfaces

bench-flows: ## flow tables: memory of a flow of each chain, and the cost of a packet at 1k to 10M flows; FLOWS="nat --flows 1M" for some
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench chains -- memory
	@cargo bench --locked -p tailwater-dataplane --bench chains -- look-ups $(FLOWS)

# The generated routing table: `l3fwd` inserts the full one for minutes.
bench-peers: ## `tailwater run` beside DPDK's testpmd and l3fwd on one core, device and traffic: ratios; PEERS="--quick" for 3 rounds, "router --flows 10k" for some; FASTCLICK=/path/to/bin/click adds it. What is missing is left out
	@tools/deps.sh build bench ports
	@env -u TAILWATER_TEST_DATA tools/peers.sh $(PEERS)

bench-external: ## cost of an external function: over a DPDK ring, veth pairs (root), and through the kernel's firewall (root)
	@tools/deps.sh build bench ports
	@cargo bench --locked -p tailwater-dataplane --features dpdk --bench external

bench-scaling: ## policies live on two cores, one flow split between them, cost of a decision, CPU time left to other programs
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench epoch_end
	@cargo bench --locked -p tailwater-dataplane --bench splits
	@cargo bench --locked -p tailwater-handover --bench ring
	@cargo bench --locked -p tailwater-dataplane --bench sharing
	@cargo bench --locked -p tailwater-profile --bench scaling

bench-isolation: ## chains of isolated functions compared with the same in one process, and the latency objectives that they meet; as root
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench isolation
	@cargo bench --locked -p tailwater --bench isolation_slo

bench-cluster: ## a rack's controller on 1,000 simulated servers for an hour, by policy: cores over an oracle's, objectives kept, moves, recovery; CLUSTER="--servers 100 --seeds 11" for less
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-sim --bench cluster -- $(CLUSTER)

bench-ingress: ## packets per second of the ingress's software data plane on one core, in turn with Open vSwitch's userspace datapath, over veth pairs; as root
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-cluster --bench ingress

bench-sim: ## speed of the rack simulator
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-sim --bench engine

bench-start: ## time from the start of `tailwater run` to its first packet, also with 1,500 rules and a full BGP table (TAILWATER_TEST_DATA)
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater --bench start

bench-socket: ## a modelled processor socket beside measured and published figures
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-socket --bench socket

bench-papers: ## the tables and figures of NetBlaze and Quadrant on the rack simulator, side by side; PAPERS="--quick" for a short run, or a part of names
	@tools/deps.sh build bench
	@mkdir -p target
	@cargo bench --locked -p tailwater-sim --bench papers -- $(PAPERS) | tee target/papers.jsonl
	@cargo bench --locked -p tailwater-sim --bench papers -- tables $(CURDIR)/target/papers.jsonl

bench-compare: ## all policies with the same knowledge, tuning and machine, on the rack simulator; COMPARE="--quick" for a short run, "papers --seeds 1..21" for a group of cells
	@tools/deps.sh build bench
	@mkdir -p target
	@cargo bench --locked -p tailwater-sim --bench compare -- measure $(COMPARE) | tee target/compare.jsonl
	@cargo bench --locked -p tailwater-sim --bench compare -- table $(CURDIR)/target/compare.jsonl

bench-live-vs-sim: ## the same packets live on two cores and simulated with the profile of this machine: a table
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-profile --bench live_vs_sim

bench-profile: ## agreement of repeated curves of a chain, and the duration of measuring all; a quarter of an hour on a quiet machine
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-profile --bench repeat

bench-placement: ## machines for the SLO mixes of ResQ's evaluation by all schedulers, and the time of decisions; builds HiGHS first, which takes minutes
	@tools/deps.sh build milp
	@cargo bench --locked -p tailwater-placement --bench on_demand
	@cargo bench --locked -p tailwater-placement --bench co_run
	@if tools/features.sh milp; then cargo bench --locked -p tailwater-baselines --features milp --bench placement; \
	else echo "without HiGHS (cmake, a C++ compiler, libclang), its rows are omitted" >&2; \
	cargo bench --locked -p tailwater-baselines --bench placement; fi

bench-contention: ## co-runs of chains with synthetic loads and with each other on two cores, predicted from probes; six minutes on a quiet machine; CONTENTION="--more" adds what was disturbed, "--again" evaluates the last ones
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-profile --bench contention -- $(CONTENTION)

bench-prediction: ## errors of contention models: on published co-runs (needs TAILWATER_TEST_DATA), and on the modelled socket; PREDICTION="--quick" for a short run, or sections
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-predict --bench yala
	@cargo bench --locked -p tailwater-predict --bench socket -- $(PREDICTION)

bench-serve: ## a chain on a server's shared port beside `tailwater run`, 16 chains on one port, idle chains, and a chain in overload beside another; SERVE="--runs 9"
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-dataplane --bench serve -- $(SERVE)

bench-state: ## cost of flow state in Redis: a packet's time on the worker, its waiting time, updates per second
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-state --bench redis

bench-functions: ## every function alone (FUNCTIONS="acl nat --flows 10k" for some), as a table; the ACL's classifier, IPsec compared with its ciphers, up to a million sessions of users, detection with ET Open's rules
	@tools/deps.sh build bench
	@mkdir -p target
	@cargo bench --locked -p tailwater-dataplane --bench functions -- --runs 3 --sizes 64B,imix,1024B $(FUNCTIONS) | tee target/functions.jsonl
	@cargo bench --locked -p tailwater-dataplane --bench functions -- table $(CURDIR)/target/functions.jsonl
	@cargo bench --locked -p tailwater-functions --bench acl
	@cargo bench --locked -p tailwater-functions --bench ipsec
	@cargo bench --locked -p tailwater-functions --bench upf
	@cargo bench --locked -p tailwater-ids --bench ids

bench-ids: ## `ids` beside Suricata on the same captures and rules: precision, recall, HTTP evasions, speed on one core; IDS="--details" prints what differs. Suricata is taken from SURICATA_ROOT=folder or the path; skipped without it
	@tools/deps.sh build bench
	@cargo bench --locked -p tailwater-ids --bench suricata -- $(IDS)

bench-changes: ## cost of changing each function under traffic: latency with and without changes, lost packets; CHANGES="acl-1500 --runs 9" for some
	@tools/deps.sh build bench
	@mkdir -p target
	@cargo bench --locked -p tailwater-dataplane --bench changes -- --runs 5 --sizes imix $(CHANGES) > target/changes.jsonl
	@cat target/changes.jsonl
	@cargo bench --locked -p tailwater-dataplane --bench changes -- table $(CURDIR)/target/changes.jsonl

clean: ## remove build results
	cargo clean
