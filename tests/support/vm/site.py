"""A cluster of one node, the guest, with the operator beside it on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.cluster.binaries import ROOT
from support.cluster.controlplane import ControlPlane
from support.cluster.kube import Kube, Object, documents
from support.cluster.nodes.images import RUNTIME_IMAGE
from support.cluster.nodes.served import engine_pods, sample
from support.cluster.process import Process
from support.cluster.waiting import wait_for
from support.vm.guest import HOST, Guest
from support.vm.node import GuestNode

CRD = ROOT / "manifests/crd/inferenceservices.serving.ballast.dev.yaml"
NAMESPACE, NAME = "default", "tiny-cpu"
CONVERGED_S = 300


@dataclass(frozen=True, slots=True)
class Site:
    """What tests do with it."""

    node: GuestNode
    kube: Kube

    def condition(self, kind: str) -> Object:
        status = self.kube.get("inferenceservices", NAME, NAMESPACE).get("status", {})
        found: Object = next((c for c in status.get("conditions", []) if c["type"] == kind), {"status": "absent"})
        return found

    def wait_condition(self, kind: str, status: str, *reasons: str) -> Object:
        def there() -> Object:
            found = self.condition(kind)
            assert found["status"] == status, found
            assert not reasons or found["reason"] in reasons, found
            return found

        return wait_for(f"{kind} {status} {reasons}", there, CONVERGED_S, interval_s=1)

    def placement(self) -> Object:
        def told() -> Object:
            status = self.kube.get("inferenceservices", NAME, NAMESPACE).get("status", {})
            return dict((status.get("placement") or [{}])[0])

        return wait_for("where the pod runs", told, CONVERGED_S, interval_s=1)

    @contextmanager
    def served(self, resources: Object, replicas: int = 1, **numa: str) -> Iterator[None]:
        """The service asked for; afterwards it and its pods are gone."""
        service = sample(NAME, resources=resources, replicas=replicas, numa=numa)
        self.kube.apply("inferenceservices", service, NAMESPACE)
        try:
            yield
        finally:
            self.kube.delete("inferenceservices", NAME, NAMESPACE)
            wait_for("its pods to end", lambda: not engine_pods(self.kube, NAME), CONVERGED_S, interval_s=1)


@contextmanager
def site_of(guest: Guest, folder: Path) -> Iterator[Site]:
    """Started, but for the kubelet."""
    control_plane = ControlPlane(folder, address=HOST)
    argv = [sys.executable, "-m", "ballast_operator", "run", "--health-port", "0", "--health-host", "127.0.0.1"]
    argv += ["--identity", "operator", "--runtime-image", RUNTIME_IMAGE]
    operator = Process("operator", argv, folder, env={"KUBECONFIG": str(control_plane.kubeconfig)})
    try:
        control_plane.start()
        for document in documents(CRD):
            control_plane.kube.apply("customresourcedefinitions", document)
        control_plane.kube.create("namespaces", {"metadata": {"name": "ballast-system"}})
        node = GuestNode(guest, control_plane, folder)
        node.start()
        node.run_proxy()
        operator.start()
        yield Site(node, control_plane.kube)
        operator.check()
    finally:
        operator.stop()
        control_plane.stop()
