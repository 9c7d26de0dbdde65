#!/usr/bin/env bash
# Runs the commands of README.md as a reader would type them, at the top of the checkout, and
# compares what they print with what the README shows.
#
# In a block fenced as ```console a line that begins with `$ ` is a command; what follows, up to the
# next one, is what it prints on standard output and standard error. There
#   - a line `…` stands for any number of lines, none included;
#   - … inside a line stands for anything: what differs from run to run.
# A command without output shown may print anything. Each command runs in a shell of its own, and
# the first that fails or prints something else ends the script.
#
# A block behind the comment <!-- not run: WHY --> is only shown.
#
#   tests/run-readme.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

# As a reader's make, not as one below the make that runs this.
unset MAKEFLAGS MFLAGS MAKELEVEL

file=${1:-README.md}
ran=0

# The expected lines as a pattern of bash: everything is itself but …
pattern_of() {
  local pattern="" line quoted
  while IFS= read -r line; do
    if [ "$line" = … ]; then
      pattern+='*'
    else
      quoted=""
      while [[ $line == *…* ]]; do
        quoted+="$(escaped "${line%%…*}")*"
        line=${line#*…}
      done
      pattern+="$quoted$(escaped "$line")"$'\n'
    fi
  done
  printf '%sx' "$pattern"
}

# Takes the meaning from what a pattern gives a meaning to.
escaped() {
  printf '%s' "$1" | sed 's/[][\\*?!+@(){}|^-]/\\&/g'
}

# run COMMAND EXPECTED SHOWN
run() {
  local command=$1 expected=$2 shown=$3 output pattern
  printf 'README: %s\n' "$command"
  ran=$((ran + 1))
  output=$(mktemp)
  if ! bash -euo pipefail -c "$command" >"$output" 2>&1 </dev/null; then
    cat "$output" >&2
    rm -f "$output"
    echo "run-readme.sh: failed: $command" >&2
    exit 1
  fi
  pattern=$(printf '%s' "$expected" | pattern_of)
  # The x keeps the last newline of what would else be trimmed.
  printed=$(cat "$output" && echo x)
  rm -f "$output"
  # shellcheck disable=SC2053
  if [ "$shown" = yes ] && [[ $printed != $pattern ]]; then
    diff <(printf '%s' "$expected") <(printf '%s' "${printed%x}") >&2 || true
    echo "run-readme.sh: printed something else than $file shows: $command" >&2
    exit 1
  fi
}

inside=no
skip=no
command=""
expected=""
shown=no
finish() {
  [ -z "$command" ] || run "$command" "$expected" "$shown"
  command="" expected="" shown=no
}
while IFS= read -r line; do
  case "$inside:$line" in
    'no:<!-- not run: '*) skip=yes ;;
    'no:```console')
      if [ "$skip" = yes ]; then inside=skipped; else inside=yes; fi
      skip=no
      ;;
    'no:```'*) inside=skipped skip=no ;;
    'yes:```') finish && inside=no ;;
    'skipped:```') inside=no ;;
    'yes:$ '*) finish && command=${line#'$ '} ;;
    yes:*)
      [ -n "$command" ] || { echo "run-readme.sh: output before a command: $line" >&2; exit 1; }
      expected+=$line$'\n' shown=yes
      ;;
  esac
done <"$file"

[ "$inside" = no ] || { echo "run-readme.sh: the last block of $file does not end" >&2; exit 1; }
[ "$ran" -gt 0 ] || { echo "run-readme.sh: $file has no block fenced as \`\`\`console" >&2; exit 1; }
echo "README: $ran commands ran and printed what is shown"
