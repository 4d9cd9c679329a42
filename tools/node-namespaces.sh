#!/usr/bin/env bash
# Runs a command in new namespaces in which a node can run. Needs Linux and root.
#   node-namespaces.sh COMMAND [ARGUMENT...]
# When the last process in the namespaces ends, the network disappears. Container runtimes and kubelets write to the
# folders below in every configuration. Here these folders are empty and in memory, so the machine's folders do not change.
set -euo pipefail

export NODE_FOLDERS="/run/netns /run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers"
export BALLAST_MACHINE_NETWORK
BALLAST_MACHINE_NETWORK=$(readlink /proc/self/ns/net)

made=()
# shellcheck disable=SC2317  # called by the trap
take_away() {
  for folder in ${made[@]+"${made[@]}"}; do
    rmdir "$folder" 2> /dev/null || true # another run may use it
  done
}
trap take_away EXIT
for folder in $NODE_FOLDERS; do
  if [ ! -d "$folder" ]; then
    mkdir -p "$folder"
    made+=("$folder")
  fi
done

# shellcheck disable=SC2016  # expanded by the inner shell
unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private bash -c '
  for folder in $NODE_FOLDERS; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
  done
  exec "$@"' bash "$@"
