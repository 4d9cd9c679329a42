#!/usr/bin/env bash
# Runs all tests that need no GPU, the parts of `make test`, and reports how long each part took.
# Downloads, Go builds for clusters, and cluster tests (which mostly wait) run alongside the other parts.
# Output of downloads and builds is shown only if one of them fails; output of cluster tests when they have ended.
set -euo pipefail
cd "$(dirname "$0")/.."

parts="setup browser prometheus cluster-binaries test-clusters test-cpp test-older-cpus test-python"
mkdir -p build
results=$(mktemp -d build/test-parts.XXXXXX) # per part: its output if it ran alongside; its seconds and exit status
running=()

run() { # part
  local start=$SECONDS status=0
  make --no-print-directory "$1" || status=$?
  echo "$((SECONDS - start)) $status" > "$results/$1.part" && mv "$results/$1.part" "$results/$1.result"
  return "$status"
}

foreground() { # part
  set -m # a process group of its own, so that a signal sent only to this script ends the part too
  run "$1" < /dev/null & running+=("$!")
  set +m
  wait "${running[-1]}"
}

alongside() { # parts, one after the other
  for part; do run "$part" > "$results/$part.log" 2>&1 || return; done
}

alongside_after() { # part, those that must have succeeded before
  local part=$1 needed
  shift
  for needed; do
    until [ -e "$results/$needed.result" ]; do sleep 0.2; done
    [[ $(<"$results/$needed.result") == *" 0" ]] || return 0
  done
  alongside "$part"
}

wait_for() { # process of `alongside`, its parts
  local process=$1 part
  shift
  if kill -0 "$process" 2>/dev/null; then echo "make test: waiting for $*"; fi
  if wait "$process"; then return; fi
  for part; do
    if [ -e "$results/$part.log" ]; then echo "make test: output of $part:" && cat "$results/$part.log"; fi
  done >&2
  return 1
}

finish() {
  local part took status
  for process in "${running[@]}"; do kill -- "-$process" 2>/dev/null || true; done
  echo "make test: time of each part, min:s"
  for part in $parts; do
    took="-" status=""
    if [ -e "$results/$part.result" ]; then
      read -r took status < "$results/$part.result"
      took=$(printf '%d:%02d' $((took / 60)) $((took % 60)))
    fi
    case $status in
      0) status="" ;;
      "") status="did not finish" ;;
      *) status="failed" ;;
    esac
    printf '%7s  %-17s %s\n' "$took" "$part" "$status"
  done | sed 's/ *$//'
  printf '%7s  total\n' "$(printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)))"
  rm -rf "$results"
}
trap finish EXIT

foreground setup
set -m # a process group for each, so that all of it ends with this script
alongside browser prometheus < /dev/null & downloads=$!
alongside cluster-binaries < /dev/null & binaries=$!
alongside_after test-clusters prometheus cluster-binaries < /dev/null & clusters=$!
set +m
running+=("$downloads" "$binaries" "$clusters")
foreground test-cpp
wait_for "$downloads" browser prometheus # it installs packages, as the tests on older CPUs may do
foreground test-older-cpus
wait_for "$binaries" cluster-binaries
foreground test-python
wait_for "$clusters" test-clusters
cat "$results/test-clusters.log"
