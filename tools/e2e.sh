#!/usr/bin/env bash
# Tests on a real node: kubelet, containerd and the project's own images. Linux and root; says what else is missing.
#   e2e.sh [PYTEST ARGUMENTS]              the operator, with the image for services without GPUs
#   e2e.sh gpu-image [PYTEST ARGUMENTS]    the images with CUDA's libraries, one after the other; 35 GB of disk meanwhile
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD/tests
# The network goes away with the last process in it, and so does every process: nothing of a node is left behind.
export BALLAST_MACHINE_NETWORK BALLAST_E2E_VARIANT
BALLAST_MACHINE_NETWORK=$(readlink /proc/self/ns/net)

tested() { # the runtime's variant, then what pytest is given
  BALLAST_E2E_VARIANT=$1
  shift
  .venv/bin/python -m support.cluster.nodes.images
  for part in controlplane node charts; do
    tools/cluster-binaries.sh $part > /dev/null
  done
  unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private \
    .venv/bin/pytest --timeout 900 "$@"
}

if [ "${1:-}" != gpu-image ]; then
  tested cpu tests/e2e --ignore tests/e2e/gpu_image "$@"
  exit
fi
shift
node=build/e2e/node
for variant in runtime cuda; do
  trap 'rm -rf "$node" "build/e2e/$variant"' EXIT
  tested $variant tests/e2e/gpu_image --timeout 2400 --basetemp "$node" -rP "$@"
  rm -rf "$node" "build/e2e/$variant"
done
