#!/usr/bin/env bash
# Runs the commands of README.md as a reader would type them: every block fenced as ```sh, in order,
# in one shell at the top of the checkout, stopping at the first command that fails. What they leave
# running in the background is ended. Blocks fenced as ```sh no-run are only shown (they would run
# this script again, take long, or need a machine of the reader's).
#
#   tests/run-readme.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

file=${1:-README.md}
script=$(mktemp)
trap 'rm -f "$script"' EXIT

{
  echo 'set -euo pipefail'
  echo "trap 'kill \$(jobs -p) 2>/dev/null || true' EXIT"
  # Each command is shown before it runs, so that a failure says where.
  echo 'PS4="README: "; set -x'
  awk '/^```/ { inside = !inside && $0 == "```sh"; if (inside) blocks++; next }
       inside { print }
       END { exit !blocks }' "$file" || { echo "$file has no block fenced as \`\`\`sh" >&2; exit 1; }
} >"$script"
bash "$script" </dev/null
