"""The configuration of containerd, its network and a kubelet, for a node on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from devkit.cluster.controlplane import ControlPlane

CNI_FOLDER = Path("/usr/lib/cni")
MEMORY_EVICTION_MIB = 100


def containerd_config(folder: Path, sandbox_image: str) -> str:
    """containerd's config.toml. All its data is in `folder`/containerd, next to the network's configuration."""
    return f"""\
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{folder}/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  # Without CAP_SYS_RESOURCE a sandbox that lowers its score cannot start.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_FOLDER}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def cni_config(folder: Path, number: int = 0, masquerade: bool = True) -> dict[str, object]:
    """A bridge with the addresses 10.244.`number`.0/24; with `masquerade`, packets leave with the node's address."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
        "dataDir": str(folder / "cni-ipam"),
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": f"cni{number}",
        "isGateway": True,
        "ipMasq": masquerade,
        "hairpinMode": True,
        "ipam": ipam,
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def kubelet_config(
    control_plane: ControlPlane, folder: Path, server: tuple[Path, Path], address: str, managers: Mapping[str, object]
) -> dict[str, object]:
    """A KubeletConfiguration with the static managers; `managers` overrides policies and reservations. `server`:
    certificate and key. All paths are on the kubelet's machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(control_plane.pki.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "address": address,
        "healthzPort": 0,
        "podLogsDir": str(folder / "pod-logs"),
        "tlsCertFile": str(server[0]),
        "tlsPrivateKeyFile": str(server[1]),
        "containerRuntimeEndpoint": f"unix://{folder}/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": f"{MEMORY_EVICTION_MIB}Mi", "nodefs.available": "1%"},
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
        **managers,
    }


def proxy_config(control_plane: ControlPlane, node: str, address: str) -> dict[str, object]:
    """A KubeProxyConfiguration for the node's name and address."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(control_plane.client_config("system:kube-proxy"))},
        "mode": "iptables",
        "clusterCIDR": control_plane.pod_cidr,
        "bindAddress": address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "hostnameOverride": node,
        "conntrack": {"maxPerCore": 0},
    }
