#!/usr/bin/env bash
# Tests on an emulated machine (QEMU) with two NUMA nodes. Needs Linux and root. Reports what else is missing.
#   numa.sh [PYTEST ARGUMENTS]
# The wheel must be in build/dist (make wheel). BALLAST_NUMA_RECORDS names a file to which records are appended.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD

say() { # prints the next step and the time until now
  printf '%5d s  %s\n' "$SECONDS" "$*"
}

for part in controlplane node; do
  say "programs of the cluster: $part"
  tools/cluster-binaries.sh $part > /dev/null
done
say "the machine's disk; minutes when it is built for the first time"
.venv/bin/python -m devkit.vm.disk
say "tests"
trap 'rm -rf build/numa' EXIT
tools/node-namespaces.sh .venv/bin/pytest --timeout 1200 --verbose -s --basetemp build/numa/tests tests/numa_vm "$@"
say "done"
