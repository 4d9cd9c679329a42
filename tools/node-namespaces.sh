#!/usr/bin/env bash
# Runs a command in namespaces of its own, in which a node can live; Linux and root.
#   node-namespaces.sh COMMAND [ARGUMENT...]
# The network goes away with the last process in it, and so does every process. The folders below, to which container
# runtimes and kubelets write wherever else they are sent, are empty ones in memory: the machine keeps its own.
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
