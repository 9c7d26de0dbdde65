#!/bin/sh
# Runs tests/wasm in wasm under Node. The runner has to be of exactly the version of wasm-bindgen
# that the tests link, so it is kept in the cache under its version. Arguments go to the tests.
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/^version = "\(.*\)"$/\1/p;}' Cargo.lock)
root="${WARMROUTE_CACHE:-$HOME/.cache/warmroute}/wasm-bindgen-$version"
runner="$root/bin/wasm-bindgen-test-runner"

[ -x "$runner" ] || { echo "run-wasm.sh: the runner is missing; \`make test-wasm\` fetches it" >&2; exit 1; }
command -v node >/dev/null || { echo "run-wasm.sh: node is needed" >&2; exit 1; }

CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER="$runner" \
    exec cargo test --target wasm32-unknown-unknown --test wasm -- "$@"
