#!/usr/bin/env bash
# Tests on a real node: kubelet, containerd and the project's own images. Needs Linux and root. Reports what else
# is missing.
#   e2e.sh [PYTEST ARGUMENTS]              the operator, with the image for services without GPUs; KEDA, on simulated nodes
#   e2e.sh gpu-image [PYTEST ARGUMENTS]    the images with CUDA's libraries, one after the other; needs 35 GB of disk
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD
export BALLAST_E2E_VARIANT

say() { # prints the next step and the time until now
  printf '%5d s  %s\n' "$SECONDS" "$*"
}

tested() { # the runtime's variant, then arguments for pytest
  BALLAST_E2E_VARIANT=$1
  shift
  say "images ($BALLAST_E2E_VARIANT); minutes when they are built for the first time"
  .venv/bin/python -m devkit.cluster.nodes.images
  for part in controlplane node charts; do
    say "programs of the cluster: $part"
    tools/cluster-binaries.sh $part > /dev/null
  done
  say "tests"
  tools/node-namespaces.sh .venv/bin/pytest --timeout 900 --verbose "$@"
  say "done"
}

if [ "${1:-}" != gpu-image ]; then
  say "KEDA; minutes when it is built for the first time"
  tools/cluster-binaries.sh keda > /dev/null
  tested cpu tests/e2e tests/cluster/keda --ignore tests/e2e/gpu_image "$@"
  exit
fi
shift
node=build/e2e/node
for variant in runtime cuda; do
  trap 'rm -rf "$node" "build/e2e/$variant"' EXIT
  tested $variant tests/e2e/gpu_image --timeout 2400 --basetemp "$node" -rP "$@"
  rm -rf "$node" "build/e2e/$variant"
done
