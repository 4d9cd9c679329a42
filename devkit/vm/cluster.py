"""A cluster whose only node is the guest, with the operator on the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.specs import status_of, wait_condition
from devkit.cluster.waiting import wait_for
from devkit.vm.guest import HOST, Guest
from devkit.vm.image import RUNTIME_IMAGE
from devkit.vm.node import Given, GuestNode

NAMESPACE = "default"
KIND = {"apiVersion": "serving.ballast.dev/v1beta1", "kind": "InferenceService"}
SERVICE_LABEL = "serving.ballast.dev/service"
READY_TIMEOUT_S, END_TIMEOUT_S, DOCTOR_TIMEOUT_S = 480, 180, 120
"""Emulation makes the guest's CPUs tens of times slower than the host's."""


class GuestCluster:
    """`node` runs no kubelet until a test starts it."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self._cluster = Cluster(folder, HOST)
        self.node = GuestNode(guest, self._cluster.control_plane, folder)
        self._operator: OperatorProcess | None = None

    @property
    def kube(self) -> Kube:
        return self._cluster.kube

    def start(self) -> None:
        """Return when the operator leads."""
        self._cluster.control_plane.start()
        self.node.start()
        install(self._cluster)
        self._operator = OperatorProcess(self._cluster, "operator", None, "--runtime-image", RUNTIME_IMAGE)
        self._operator.start()
        self._operator.wait_leading()

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.stop()
        self.node.stop()
        self._cluster.control_plane.stop()

    @contextmanager
    def service(self, name: str, policy: str, enforcement: str, **resources: object) -> Iterator[str]:
        """Apply a service and yield its name; afterwards delete it and wait until its pods are gone."""
        self.apply(name, policy, enforcement, **resources)
        try:
            yield name
        finally:
            self.kube.delete("inferenceservices", name, NAMESPACE)
            wait_for(f"pods of {name} to end", lambda: not self.pods(name), END_TIMEOUT_S)

    def apply(self, name: str, policy: str, enforcement: str, **resources: object) -> None:
        """Create one replica of the built-in model with 2 CPUs, 1 GiB and no GPU, unless `resources` sets other
        values."""
        spec = {
            "model": {"servedName": "tiny", "source": {"builtin": {}}},
            "engine": {"maxNewTokens": 128, "cacheLens": 4096, "drainTimeoutSeconds": 1},
            "resources": {"cpus": 2, "memory": "1Gi", "gpus": 0, **resources},
            "numa": {"policy": policy, "enforcement": enforcement},
        }
        self.kube.apply("inferenceservices", {**KIND, "metadata": {"name": name}, "spec": spec}, NAMESPACE)

    def wait(self, name: str, kind: str, status: str, reason: str) -> str:
        """The message of a condition, once it has this status and reason for the newest spec."""
        found = wait_condition(self.kube, NAMESPACE, name, kind, status, reason, timeout_s=READY_TIMEOUT_S)
        return str(found["message"])

    def pods(self, name: str) -> list[Object]:
        return self.kube.list("pods", NAMESPACE, {SERVICE_LABEL: name})

    def running_pod(self, name: str) -> Object:
        """The service's only pod that has not finished."""
        pods = [pod for pod in self.pods(name) if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        assert len(pods) == 1, [pod["metadata"]["name"] for pod in pods]
        return pods[0]

    def given(self, name: str) -> Given:
        """The resources that the kubelet allocated to that pod."""
        return self.node.given(self.running_pod(name)["metadata"]["uid"])

    def allowed(self, name: str) -> tuple[str, str]:
        """The CPUs and memory nodes that the guest's kernel allows for its engine."""
        return self.node.allowed(self.running_pod(name)["metadata"]["uid"])

    def placement(self, name: str) -> Object:
        """The placement that the operator reports for that pod."""
        (found,) = status_of(self.kube, NAMESPACE, name)["placement"]
        return dict(found)

    def doctor(self) -> str:
        """Output of `ballast-operator doctor`."""
        argv = [sys.executable, "-m", "ballast_operator", "doctor"]
        env = {**os.environ, "KUBECONFIG": str(self._cluster.control_plane.kubeconfig)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DOCTOR_TIMEOUT_S, check=False)
        return done.stdout + done.stderr

    def describe(self) -> str:
        """State of the cluster, for diagnosing a failure."""
        services = self.kube.list("inferenceservices", NAMESPACE)
        pods = self.kube.list("pods", NAMESPACE)
        shown = [f"{item['metadata']['name']}: {item.get('status')}" for item in (*services, *pods)]
        return "\n".join((*shown, self.node.guest.log("kubelet")[-4000:]))
