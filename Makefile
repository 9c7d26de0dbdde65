# Everything a checkout needs, from the tools to the figures. `make help` lists the targets.
#
# Needs cargo (rustup), a C linker, bash, python3 >= 3.9 and, for the tests, node; what else is
# missing is fetched, into the cache below and never into the system. Nothing asks anything.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help build check test demo demo-vllm vllm compare figures portfolio chaos soak tools clean \
        build-chaos rust envoy node wasm-bindgen python browser peers test-native test-wasm test-e2e test-readme
# cargo uses all cores by itself, and the tests would disturb each other.
.NOTPARALLEL:

# The module is looked for in here, and built with the flags below.
export CARGO_TARGET_DIR := $(CURDIR)/target
unexport RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET

export WARMROUTE_CACHE ?= $(HOME)/.cache/warmroute
export WARMROUTE_PYTHON = $(WARMROUTE_CACHE)/python/bin/python
OPENAI_VERSION := 3.57.0
# npm packages: what drives the browser, and the browser for machines that have none.
PLAYWRIGHT_VERSION := 1.65.1
CHROMIUM_VERSION := 149.0.0

RUST_VERSION := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
WASM_TARGET := wasm32-unknown-unknown
WASM := target/$(WASM_TARGET)/release/warmroute.wasm
# One version for the library and for the tool that runs its tests.
WASM_BINDGEN_VERSION = $(shell sed -n '/^name = "wasm-bindgen"$$/{n;s/version = "\(.*\)"/\1/p;}' Cargo.lock)
export WASM_BINDGEN_ROOT = $(WARMROUTE_CACHE)/wasm-bindgen-$(WASM_BINDGEN_VERSION)

# Tests named e2e_* start a real Envoy or a real browser; all others need nothing but cargo.
TESTS := $(basename $(notdir $(wildcard tests/*.rs))) $(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs))
E2E_TESTS := $(filter e2e_%,$(TESTS))
NATIVE_TESTS := $(filter-out e2e_%,$(TESTS))

CARGO := cargo --quiet
say = @printf '== %s\n'

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)$$/\1\t\2/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "make %-10s %s\n", $$1, $$2}'

build: rust ## the module for Envoy: target/wasm32-unknown-unknown/release/warmroute.wasm
	$(say) 'building $(WASM)'
	@CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='-C target-feature=+simd128' \
	  $(CARGO) rustc --lib --release --target $(WASM_TARGET) --features filter --crate-type cdylib

# The module with panics on demand, in a directory of its own, so that it is never taken for the other.
build-chaos: rust
	$(say) 'building a module that panics on demand, for tests'
	@CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='-C target-feature=+simd128' CARGO_TARGET_DIR='$(CURDIR)/target/chaos' \
	  $(CARGO) rustc --lib --profile tools --target $(WASM_TARGET) --features chaos --crate-type cdylib

check: rust ## format, lints, tests that need no Envoy, documentation
	$(say) 'format and lints'
	@$(CARGO) fmt --check
	@cargo clippy --quiet --all-targets -- -D warnings
	@cargo clippy --quiet --lib --target $(WASM_TARGET) --features filter -- -D warnings
	@cargo clippy --quiet --lib --target $(WASM_TARGET) --features chaos -- -D warnings
	@cargo clippy --quiet --example index_bench --target $(WASM_TARGET) --features index-bench -- -D warnings
	$(say) 'documentation'
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --lib
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --lib --target $(WASM_TARGET) --features filter
	@$(MAKE) test-native

test: tools check test-wasm test-e2e test-readme ## everything: check, the same tests in wasm, end to end on a real Envoy, the README's commands

test-native: rust
	$(say) 'unit and property tests'
	@$(CARGO) test --lib --examples $(addprefix --test ,$(NATIVE_TESTS))
	@$(CARGO) test --doc

test-wasm: rust wasm-bindgen
	$(say) 'core tests in wasm, under Node'
	@tests/run-wasm.sh

test-e2e: build build-chaos envoy python browser peers
	$(say) 'end to end, on a real Envoy and in a real browser'
	@$(CARGO) test $(addprefix --test ,$(E2E_TESTS))

test-readme: build envoy
	$(say) 'the commands of the README'
	@tests/run-readme.sh

demo: build envoy ## a chat load through Envoy on four mock replicas, under each policy
	@$(CARGO) run --profile tools --example demo -- $(DEMO)

demo-vllm: build envoy vllm ## a public trace through Envoy on two real vLLM replicas, beside its simulation (8 GB of disk and memory)
	@$(CARGO) run --profile tools --example demo_vllm -- --figures $(DEMO_VLLM)

# Another trace, say: make compare COMPARE='--trace FILE'
COMPARE ?= --rate 55 --requests 3000 --speed 4
compare: build envoy ## routers on one workload, Envoy's own and others too: target/compare/compare.html
	@mkdir -p target/compare
	@examples/replay/find-peers.sh --install || echo 'going on without: the report will say so'
	@$(CARGO) run --profile tools --example replay -- --html target/compare/compare.html --json target/compare/compare.json --figures $(COMPARE)

figures: build envoy ## measures and prints `FIGURE name value` lines, those of the portfolio and of replay --twin too
	@printf 'FIGURE wasm_bytes %s\n' "$$(wc -c <$(WASM) | tr -d ' ')"
	@code=0; \
	$(CARGO) run --profile tools --example demo -- --policies round_robin,prefix_hash --figures || code=$$?; \
	$(CARGO) run --profile tools --example figures || code=$$?; \
	$(CARGO) run --profile tools --example simulate -- figures || code=$$?; \
	$(CARGO) run --profile tools --example portfolio -- --figures --subject expected_latency || code=$$?; \
	$(CARGO) run --profile tools --example replay -- --twin || code=$$?; \
	exit $$code

# Further: make portfolio PORTFOLIO=--bounds (what is in reach), PORTFOLIO=--unseen
portfolio: rust ## every policy and other routers' algorithms over many workloads, in virtual time
	@$(CARGO) run --profile tools --example portfolio -- $(PORTFOLIO)

# One of them, say: make chaos CHAOS='--only kill9'
chaos: build envoy ## kills, drains, flaps, black holes and floods on a real Envoy, with a bar for each
	@$(CARGO) build --profile tools --example mock_vllm
	@$(CARGO) run --profile tools --example chaos -- $(CHAOS)

# Shorter: make soak SOAK='--minutes 2'
soak: build envoy ## half an hour of load with mishaps: nothing may grow, leak or fail
	@$(CARGO) build --profile tools --example mock_vllm
	@$(CARGO) run --profile tools --example chaos -- soak $(SOAK)

vllm: ## fetches vLLM for the CPU (3.7 GB)
	@examples/vllm/install.sh --install >/dev/null

tools: node rust envoy wasm-bindgen python browser peers ## fetches what the other targets need, ahead of time

clean: ## removes target/ (the cache of tools stays: $WARMROUTE_CACHE, else ~/.cache/warmroute)
	@$(CARGO) clean

# rustup fetches what rust-toolchain.toml lists; without rustup, it has to be there.
rust:
	@command -v cargo >/dev/null || { echo 'cargo is missing: get it from https://rustup.rs' >&2; exit 1; }
	@all_there() { \
	  cargo fmt --version && cargo clippy --version && \
	  [ -d "$$(rustc --print target-libdir --target $(WASM_TARGET))" ]; \
	} >/dev/null 2>&1; \
	fetch() { rustup toolchain install && rustup component add rustfmt clippy && rustup target add $(WASM_TARGET); }; \
	wanted='Rust $(RUST_VERSION) with rustfmt, clippy and the target $(WASM_TARGET)'; \
	if ! RUSTUP_AUTO_INSTALL=0 all_there; then \
	  command -v rustup >/dev/null || { echo "$$wanted is missing, and there is no rustup to fetch it" >&2; exit 1; }; \
	  echo "installing $$wanted"; \
	  said=$$(fetch 2>&1) || true; \
	  all_there || { echo "rustup cannot install $$wanted: $$(grep -v '^[[:space:]]*$$' <<<"$$said" | tail -n 1)" >&2; exit 1; }; \
	fi

node:
	@command -v node >/dev/null || { echo 'node is missing: the wasm tests run under Node' >&2; exit 1; }

browser: node
	@node tests/browser/install.mjs '$(PLAYWRIGHT_VERSION)' '$(CHROMIUM_VERSION)'

envoy:
	@envoy/find-envoy.sh --install >/dev/null

wasm-bindgen: node rust
	@if ! [ -x '$(WASM_BINDGEN_ROOT)/bin/wasm-bindgen-test-runner' ]; then \
	  echo 'installing wasm-bindgen-cli $(WASM_BINDGEN_VERSION) (some minutes)'; \
	  env -u CARGO_TARGET_DIR $(CARGO) install wasm-bindgen-cli --debug --version '=$(WASM_BINDGEN_VERSION)' --root '$(WASM_BINDGEN_ROOT)' \
	    || { echo 'cargo cannot install wasm-bindgen-cli $(WASM_BINDGEN_VERSION)' >&2; exit 1; }; \
	fi

python:
	@if ! '$(WARMROUTE_PYTHON)' -c 'import openai, sys; sys.exit(openai.__version__ != "$(OPENAI_VERSION)")' 2>/dev/null; then \
	  command -v python3 >/dev/null || { echo 'python3 is missing: a test drives Envoy with the openai client' >&2; exit 1; }; \
	  echo 'installing the Python package openai $(OPENAI_VERSION)'; \
	  mkdir -p '$(WARMROUTE_CACHE)'; log='$(WARMROUTE_CACHE)/python.log'; \
	  { python3 -m venv '$(WARMROUTE_CACHE)/python' && '$(WARMROUTE_PYTHON)' -m pip install --disable-pip-version-check --quiet 'openai==$(OPENAI_VERSION)'; } >"$$log" 2>&1 \
	    || { echo "python3 cannot install openai $(OPENAI_VERSION): $$(grep -v '^[[:space:]]*$$' "$$log" | tail -n 1)" >&2; exit 1; }; \
	fi

peers:
	@examples/replay/find-peers.sh --install
