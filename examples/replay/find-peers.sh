#!/usr/bin/env bash
# Prints the path of another router's program, to compare with.
#
#   examples/replay/find-peers.sh vllm-router      look only at what is there already
#   examples/replay/find-peers.sh sglang-router
#   examples/replay/find-peers.sh --install        fetch all of them if need be
#
# Looked for in this order:
#   1. the file named by $VLLM_ROUTER_PATH or $SGLANG_ROUTER_PATH (if set, nothing else is tried);
#   2. the virtual environment ${WARMROUTE_CACHE:-$HOME/.cache/warmroute}/NAME-VERSION, into which
#      --install puts the PyPI package of that name and version (about 140 MB each).
#
# PATH is not searched: a comparison is with a known version.
#
# Exit code 1 and one line on stderr if there is none.
set -u

VLLM_ROUTER_VERSION=0.1.17
SGLANG_ROUTER_VERSION=0.3.2

cache=${WARMROUTE_CACHE:-$HOME/.cache/warmroute}

# settle NAME: sets version, program and given.
settle() {
  case "$1" in
    vllm-router) version=$VLLM_ROUTER_VERSION program=vllm-router given=${VLLM_ROUTER_PATH:-} ;;
    # Its other command, sglang-router, says that it is going away.
    sglang-router) version=$SGLANG_ROUTER_VERSION program=smg given=${SGLANG_ROUTER_PATH:-} ;;
    *) return 1 ;;
  esac
  venv="$cache/$1-$version"
}

# Of which a broken download leaves nothing: built beside its place, and moved there when complete.
install() {
  local name=$1 fresh log
  settle "$name"
  [ -n "$given" ] && return 0
  [ -x "$venv/bin/$program" ] && return 0
  command -v python3 >/dev/null || { echo "python3 is missing: $name is a Python package" >&2; return 1; }
  echo "installing $name $version (PyPI) into $venv" >&2
  mkdir -p "$cache"
  fresh="$venv.$$"
  log="$cache/$name-$version.log"
  if ! { python3 -m venv "$fresh" && "$fresh/bin/python" -m pip install --disable-pip-version-check --quiet "$name==$version"; } >"$log" 2>&1; then
    rm -rf "$fresh"
    echo "python3 cannot install $name $version: $(grep -v '^[[:space:]]*$' "$log" | tail -n 1)" >&2
    return 1
  fi
  # The programs in bin/ name their interpreter by its path.
  sed -i.old "s|$fresh/|$venv/|" "$fresh/bin/$program"
  rm -rf "$fresh/bin/$program.old" "$venv" && mv "$fresh" "$venv"
}

case "${1:-}" in
  --install)
    code=0
    for name in vllm-router sglang-router; do install "$name" || code=1; done
    exit $code
    ;;
  *)
    settle "${1:-}" || { echo "usage: $0 --install | vllm-router | sglang-router" >&2; exit 2; }
    found=${given:-$venv/bin/$program}
    [ -x "$found" ] || { echo "there is no $1 $version at $found" >&2; exit 1; }
    echo "$found"
    ;;
esac
