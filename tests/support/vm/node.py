"""A kubelet and containerd in the guest, on a control plane beside it: a node with two NUMA nodes to choose from."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.cluster.binaries import program
from support.cluster.controlplane import ControlPlane
from support.cluster.nodes.images import RUNTIME_IMAGE
from support.cluster.nodes.real import PAUSE_IMAGE
from support.cluster.pki import kubeconfig
from support.cluster.waiting import wait_for
from support.vm.guest import ADDRESS, Guest

NAME = "node-0"
FOLDER = "/opt/node"
SOCKET = "/run/containerd/containerd.sock"
POD_CIDR = "10.244.0.0/24"
READY_TIMEOUT_S = 240
RESERVED_CPU = "0"
"""The system's; 1 of node 0, and 2 and 3 of node 1, are left for pods."""
RESERVED_MIB, EVICTION_MIB = 300, 100

CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{FOLDER}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


class GuestNode:
    """Its kubelet may be started again with another policy of the Topology Manager."""

    def __init__(self, guest: Guest, control_plane: ControlPlane, folder: Path) -> None:
        self._guest, self._control_plane, self._folder = guest, control_plane, folder
        self._kubelet: int | None = None

    def start(self) -> None:
        """Start containerd, load the images, and hand over what the kubelet needs; it is not started yet."""
        ipam = {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        self._write("cni/pods.conflist", json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}))
        self._write("containerd.toml", CONTAINERD)
        self._guest.start_process("containerd", ["containerd", "--config", f"{FOLDER}/containerd.toml"])
        wait_for("containerd", lambda: self._guest.run("ctr", "version", check=False).count("Version:") == 2, 60)
        for image in (RUNTIME_IMAGE, PAUSE_IMAGE):
            archive = f"/opt/images/{image.rpartition('/')[2].replace(':', '-')}.tar"
            self._guest.run("ctr", "-n", "k8s.io", "images", "import", archive, timeout_s=600)
        self._guest.write(f"{FOLDER}/kubelet", program("kubelet").read_bytes())
        pki = self._control_plane.pki
        for path in (pki.ca, *pki.server("kubelet-server", NAME, ADDRESS)):
            self._guest.write(f"{FOLDER}/{path.name}", path.read_bytes())
        credentials = kubeconfig(
            self._folder / "kubelet.kubeconfig",
            self._control_plane.server,
            pki.ca,
            pki.client(f"system:node:{NAME}", "system:nodes"),
        )
        self._guest.write(f"{FOLDER}/kubeconfig", credentials.read_bytes())
        subprocess.run(["ip", "route", "replace", POD_CIDR, "via", ADDRESS], check=True, timeout=30)

    def run_kubelet(self, topology_policy: str) -> None:
        """With this policy, from an empty state; return when the node is Ready by it. There must be no pods."""
        if self._kubelet is not None:
            self._guest.end_process(self._kubelet)
            self._kubelet = None
            state = "/var/lib/kubelet/cpu_manager_state /var/lib/kubelet/memory_manager_state"
            self._guest.run("sh", "-c", f"rm -f {state}")
        before = self._heartbeat()
        self._write("kubelet.json", json.dumps(_kubelet_config(topology_policy)))
        words = [f"{FOLDER}/kubelet", f"--config={FOLDER}/kubelet.json", f"--kubeconfig={FOLDER}/kubeconfig"]
        words += [f"--hostname-override={NAME}", f"--node-ip={ADDRESS}"]
        self._kubelet = self._guest.start_process("kubelet", words)
        wait_for(f"a kubelet with {topology_policy}", lambda: self._heartbeat() > before, READY_TIMEOUT_S, interval_s=1)

    def run_proxy(self) -> None:
        """Start kube-proxy, by which this machine reaches Services as if they were its own."""
        self._guest.write(f"{FOLDER}/kube-proxy", program("kube-proxy").read_bytes())
        credentials = self._control_plane.client_config("system:kube-proxy")
        self._guest.write(f"{FOLDER}/proxy.kubeconfig", credentials.read_bytes())
        self._write("proxy.json", json.dumps(_proxy_config(self._control_plane.pod_cidr)))
        self._guest.start_process("kube-proxy", [f"{FOLDER}/kube-proxy", f"--config={FOLDER}/proxy.json"])
        services = self._control_plane.service_cidr
        subprocess.run(["ip", "route", "replace", services, "via", ADDRESS], check=True, timeout=30)

    def _heartbeat(self) -> str:
        """When the kubelet last said that it is ready; empty while it is not."""
        if self._kubelet is not None and not self._guest.is_running(self._kubelet):
            raise RuntimeError(f"the kubelet ended:\n{self._guest.log('kubelet')[-3000:]}")
        node = self._control_plane.kube.find("nodes", NAME)
        conditions = (node or {}).get("status", {}).get("conditions", [])
        ready = [c for c in conditions if (c["type"], c["status"]) == ("Ready", "True")]
        return str(ready[0]["lastHeartbeatTime"]) if ready else ""

    def _write(self, name: str, text: str) -> None:
        self._guest.write(f"{FOLDER}/{name}", text.encode())


def _kubelet_config(topology_policy: str) -> dict[str, object]:
    half = f"{(RESERVED_MIB + EVICTION_MIB) // 2}Mi"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": f"{FOLDER}/ca.crt"}},
        "address": ADDRESS,
        "tlsCertFile": f"{FOLDER}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{FOLDER}/kubelet-server.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": ["pods"],
        "reservedSystemCPUs": RESERVED_CPU,
        "kubeReserved": {"memory": f"{RESERVED_MIB}Mi"},
        "evictionHard": {"memory.available": f"{EVICTION_MIB}Mi", "nodefs.available": "1%"},
        "reservedMemory": [{"numaNode": node, "limits": {"memory": half}} for node in (0, 1)],
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": topology_policy,
        "topologyManagerScope": "pod",
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }


def _proxy_config(pod_cidr: str) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{FOLDER}/proxy.kubeconfig"},
        "mode": "iptables",
        "clusterCIDR": pod_cidr,
        "bindAddress": ADDRESS,
        "hostnameOverride": NAME,
        "conntrack": {"maxPerCore": 0},
    }
