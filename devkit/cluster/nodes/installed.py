"""A real node that has the project's images, with the operator installed from `ballast-operator install`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devkit.cluster.binaries import ROOT, program
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.kube import Kube
from devkit.cluster.nodes.images import OPERATOR_IMAGE, RUNTIME_IMAGE
from devkit.cluster.nodes.real import ADDRESS, Node
from devkit.cluster.waiting import wait_for

CRDS = ROOT / "manifests/crd"
COMMAND_TIMEOUT_S = 300
OPERATOR_NAMESPACE = "ballast-system"


class InstalledNode:
    """Built from image archives; start() returns when the operator leads."""

    def __init__(self, folder: Path, images: list[Path]) -> None:
        self.folder = folder
        self._images = images
        self.node = Node(folder / "node")
        self.node.make_network()
        self.control_plane = ControlPlane(folder / "control-plane", address=ADDRESS)

    @property
    def kube(self) -> Kube:
        return self.control_plane.kube

    def start(self) -> None:
        self.start_node()
        self.install()

    def start_node(self) -> None:
        """Start the cluster and load the images on its node."""
        self.control_plane.start()
        self.node.start_containerd(self._images)
        self.node.join(self.control_plane)
        self.node.add_devices(self.control_plane)

    def install(self) -> None:
        """Apply definitions and operator; return when an operator pod leads."""
        self.kubectl("apply", "-f", str(CRDS))
        installation = self.folder / "operator.yaml"
        installation.write_text(_operator_command("install", "--operator-image", OPERATOR_IMAGE))
        self.kubectl("apply", "-f", str(installation))
        self.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/ballast-operator", "--timeout=120s")
        wait_for("an operator to lead", self._has_leader)

    @contextmanager
    def second_node(self) -> Iterator[Node]:
        """Add a second node with the same images on the same CPUs; remove it afterwards."""
        node = Node(self.folder / "second-node", number=1)
        try:
            node.join_network()
            node.start_containerd(self._images)
            node.join(self.control_plane)
            yield node
        finally:
            node.stop()
            self.kubectl("delete", f"node/{node.name}", "--ignore-not-found", "--timeout=60s")

    def stop(self) -> None:
        self.control_plane.stop()
        self.node.stop()

    def kubectl(self, *words: str, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Output of kubectl as administrator. RuntimeError contains its output."""
        argv = [str(program("kubectl")), f"--kubeconfig={self.control_plane.kubeconfig}", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def describe(self) -> str:
        """State of the cluster, for diagnosing a failure."""
        parts = [
            self.kubectl("get", "pods,services,bisvc", "-A", "-o", "wide", check=False),
            self.kubectl("get", "bisvc", "-A", "-o", "yaml", check=False),
            self.kubectl("get", "events", "-A", check=False)[-4000:],
            self.kubectl("-n", OPERATOR_NAMESPACE, "logs", "deployment/ballast-operator", "--tail=40", check=False),
        ]
        return "\n".join(parts)

    def _has_leader(self) -> bool:
        leases = self.kube.list("leases", OPERATOR_NAMESPACE)
        return any(lease["spec"].get("holderIdentity") for lease in leases)


def _operator_command(*words: str) -> str:
    argv = [str(Path(sys.executable).with_name("ballast-operator")), *words, "--runtime-image", RUNTIME_IMAGE]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
