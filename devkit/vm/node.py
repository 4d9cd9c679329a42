"""A real node in the guest: kubelet, containerd and a device plugin on two NUMA nodes; the control plane is on the
host.

The guest has the files that a kubelet reads at the same paths as the host.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.cluster.binaries import program
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.nodes.settings import (
    MEMORY_EVICTION_MIB,
    cni_config,
    containerd_config,
    kubelet_config,
    proxy_config,
)
from devkit.cluster.pki import kubeconfig
from devkit.cluster.process import Process
from devkit.cluster.waiting import wait_for
from devkit.vm.guest import ADDRESS, HOST, NODES, Guest
from devkit.vm.image import PAUSE_IMAGE, RUNTIME_IMAGE, STORE

NAME = "two-nodes"
CPUS_PER_NODE = 4
ONE_GPU = (1,)
"""NUMA node of a single GPU. Without a topology hint, CPUs are taken from node 0 first."""
MEMORY_RESERVED_MIB = 400
"""Reserved from pods, together with the eviction threshold: half of it on each NUMA node."""
FOLDER = STORE.parents[1]
SOCKET = FOLDER / "containerd" / "containerd.sock"
PROGRAMS = Path("/opt/node")
KUBELET_FOLDER = Path("/var/lib/kubelet")
CPU_STATE, MEMORY_STATE = "cpu_manager_state", "memory_manager_state"
DEVICE_STATE = "device-plugins/kubelet_internal_checkpoint"
READY_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Given:
    """Resources that a kubelet has allocated to a pod's engine."""

    cpus: str
    """In the kernel's list format; empty if they are shared."""
    memory_nodes: set[int]
    gpu_nodes: list[int]
    """NUMA nodes of its devices, as reported by the device plugin."""


class GuestNode:
    """Uses a running guest; the API server listens at the guest's gateway."""

    def __init__(self, guest: Guest, control_plane: ControlPlane, logs: Path) -> None:
        self.guest = guest
        self._control_plane, self._logs = control_plane, logs
        self._proxy: Process | None = None
        self._running: dict[str, int] = {}
        """Process ids of the kubelet and of programs that depend on it."""
        self._runs_with: tuple[str, tuple[int, ...]] | None = None
        """The kubelet's policy and the NUMA nodes of the GPUs."""

    def start(self) -> None:
        """Start containerd with the runtime's image, and set up routes from the host to pods and Services."""
        self._lead_to_pods()
        files = {
            "containerd/config.toml": containerd_config(FOLDER, PAUSE_IMAGE),
            "cni/10-bridge.conflist": json.dumps(cni_config(FOLDER, masquerade=False)),
        }
        for name, content in files.items():
            self.guest.write(str(FOLDER / name), content.encode())
        self.guest.start_process("containerd", ["containerd", "--config", str(FOLDER / "containerd/config.toml")])
        wait_for("containerd", self._has_images, READY_TIMEOUT_S, interval_s=0.5)

    def stop(self) -> None:
        """Stop the processes on the host. The others end with the guest."""
        if self._proxy is not None:
            self._proxy.stop()

    def run_kubelet(self, topology_policy: str, gpu_nodes: tuple[int, ...] = ONE_GPU) -> None:
        """Start a kubelet with this policy, and a GPU on each of these NUMA nodes; return when the node has them.

        If a kubelet with another policy or other GPUs runs, no pod may be on the node.
        """
        if self._runs_with == (topology_policy, gpu_nodes):
            return
        self._end_kubelet()
        config = kubelet_config(self._control_plane, FOLDER, self._server(), ADDRESS, _managers(topology_policy))
        self.guest.write(str(FOLDER / "kubelet.json"), json.dumps(config).encode())
        words = [f"--config={FOLDER}/kubelet.json", f"--kubeconfig={self._credentials()}"]
        self._start("kubelet", *words, f"--hostname-override={NAME}", f"--node-ip={ADDRESS}")
        wait_for(f"node {NAME} to be Ready", self._is_ready, READY_TIMEOUT_S, interval_s=0.5)
        count = str(len(gpu_nodes))
        self._start("device-plugin", f"-count={count}", f"-numa-nodes={','.join(map(str, gpu_nodes))}")
        wait_for("GPUs", lambda: self._allocatable().get("nvidia.com/gpu") == count, READY_TIMEOUT_S, interval_s=0.5)
        self._runs_with = topology_policy, gpu_nodes

    def _end_kubelet(self) -> None:
        """Stop it and delete its allocation state: a kubelet with another policy does not start with this state."""
        for pid in self._running.values():
            self.guest.end_process(pid)
        self._running.clear()
        self.guest.run("rm", "-f", *(str(KUBELET_FOLDER / name) for name in (CPU_STATE, MEMORY_STATE, DEVICE_STATE)))
        # Otherwise the old kubelet's last status would be mistaken for the next one's.
        if self._control_plane.kube.find("nodes", NAME) is not None:
            self._control_plane.kube.delete("nodes", NAME)

    def given(self, pod_uid: str) -> Given:
        """A pod's resources, from the kubelet's state files."""
        # The entries are missing while the kubelet has not allocated anything.
        cpus = self._record(CPU_STATE).get("entries", {}).get(pod_uid, {})
        memory = self._record(MEMORY_STATE).get("entries", {}).get(pod_uid, {})
        devices = self._record(DEVICE_STATE)["Data"]["PodDeviceEntries"] or []
        return Given(
            cpus=next(iter(cpus.values()), ""),
            memory_nodes={node for blocks in memory.values() for block in blocks for node in block["numaAffinity"]},
            gpu_nodes=sorted(
                int(node) for entry in devices if entry["PodUID"] == pod_uid for node in entry["DeviceIDs"]
            ),
        )

    def allowed(self, pod_uid: str) -> tuple[str, str]:
        """The CPUs and memory nodes that the guest's kernel allows for a pod's engine."""
        script = (
            "for process in /proc/[0-9]*; do"
            f" grep -q {pod_uid} $process/cgroup 2> /dev/null && grep -q ballast $process/cmdline &&"
            " grep -E '^(Cpus|Mems)_allowed_list:' $process/status && exit; done"
        )
        cpus, memory = (line.split()[1] for line in self.guest.run("sh", "-c", script).splitlines())
        return cpus, memory

    def _start(self, name: str, *words: str) -> None:
        self._running[name] = self.guest.start_process(name, [str(PROGRAMS / name), *words])

    def _has_images(self) -> bool:
        return RUNTIME_IMAGE in self.guest.run("ctr", "-a", str(SOCKET), "-n", "k8s.io", "images", "ls", check=False)

    def _lead_to_pods(self) -> None:
        """Add routes to the guest, and run a kube-proxy on the host: only the host uses Services."""
        self.guest.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for addresses in (self._control_plane.pod_cidr, self._control_plane.service_cidr):
            subprocess.run(["ip", "route", "add", addresses, "via", ADDRESS], check=True, timeout=30)
        config = self._logs / "kube-proxy.json"
        config.write_text(json.dumps(proxy_config(self._control_plane, NAME, HOST)))
        self._proxy = Process("kube-proxy", [program("kube-proxy"), f"--config={config}"], self._logs)
        self._proxy.start()

    def _server(self) -> tuple[Path, Path]:
        """The kubelet's certificate and key; also copied to the guest."""
        pki = self._control_plane.pki
        server = pki.server("kubelet-server", NAME, ADDRESS)
        for path in (pki.ca, *server):
            self.guest.write(str(path), path.read_bytes())
        return server

    def _credentials(self) -> Path:
        pki = self._control_plane.pki
        client = pki.client(f"system:node:{NAME}", "system:nodes")
        path = kubeconfig(self._logs / "kubelet.kubeconfig", self._control_plane.server, pki.ca, client)
        self.guest.write(str(path), path.read_bytes())
        return path

    def _record(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.guest.read(str(KUBELET_FOLDER / name)))
        return record

    def _is_ready(self) -> bool:
        """Whether the running kubelet has reported the node as Ready."""
        if not self.guest.is_running(self._running["kubelet"]):
            raise RuntimeError(f"the kubelet ended:\n{self.guest.log('kubelet')[-4000:]}")
        node = self._control_plane.kube.find("nodes", NAME)
        conditions = (node or {}).get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _allocatable(self) -> dict[str, str]:
        found: dict[str, str] = self._control_plane.kube.get("nodes", NAME)["status"]["allocatable"]
        return found


def _managers(topology_policy: str) -> dict[str, object]:
    """Manager settings that reserve one CPU and some memory on each NUMA node for the system."""
    reserved = {"memory": f"{MEMORY_RESERVED_MIB // NODES}Mi"}
    return {
        "kubeReserved": {"memory": f"{MEMORY_RESERVED_MIB - MEMORY_EVICTION_MIB}Mi"},
        "reservedMemory": [{"numaNode": node, "limits": reserved} for node in range(NODES)],
        "reservedSystemCPUs": ",".join(str(node * CPUS_PER_NODE) for node in range(NODES)),
        "topologyManagerPolicy": topology_policy,
    }
