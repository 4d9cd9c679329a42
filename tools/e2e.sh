#!/usr/bin/env bash
# Tests on a real node: kubelet, containerd and the project's own images. Linux and root; says what else is missing.
#   e2e.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD/tests
.venv/bin/python -m support.cluster.nodes.images build/e2e
tools/cluster-binaries.sh controlplane > /dev/null
tools/cluster-binaries.sh node > /dev/null
tools/cluster-binaries.sh charts > /dev/null
# The network goes away with the last process in it, and so does every process: nothing of a node is left behind.
export BALLAST_MACHINE_NETWORK
BALLAST_MACHINE_NETWORK=$(readlink /proc/self/ns/net)
exec unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private \
  .venv/bin/pytest tests/e2e --timeout 900 "$@"
