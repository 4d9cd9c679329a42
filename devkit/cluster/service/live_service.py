"""One InferenceService in a namespace, with operations for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.specs import service
from devkit.cluster.waiting import wait_for

LABEL = "serving.ballast.dev/service"


@dataclass(frozen=True)
class LiveService:
    """The service by name; `kube` acts as its user."""

    kube: Kube
    namespace: str
    name: str

    def create(self, behaviour: str = "run", **spec: Any) -> None:
        self.kube.create("inferenceservices", service(self.name, behaviour, **spec), self.namespace)

    def change(self, **spec: Any) -> None:
        """Merge these fields into the spec."""
        self.kube.merge("inferenceservices", self.name, {"spec": spec}, self.namespace)

    def delete(self) -> None:
        self.kube.delete("inferenceservices", self.name, self.namespace)

    def read(self) -> Object:
        return self.kube.get("inferenceservices", self.name, self.namespace)

    def children(self, resource: str) -> list[Object]:
        return self.kube.list(resource, self.namespace, {LABEL: self.name})

    def is_converged(self) -> bool:
        """Whether it is Ready for its newest spec, with all children and the pods that this spec requires."""
        body = self.read()
        ready = {c["type"]: c for c in body.get("status", {}).get("conditions", [])}.get("Ready", {})
        assert ready.get("status") == "True", ready
        assert ready["observedGeneration"] == body["metadata"]["generation"], ready
        pods = self.children("pods")
        batch = str(body["spec"]["engine"]["maxBatchSize"])
        for pod in pods:
            arguments = pod["spec"]["containers"][0]["args"]
            assert arguments[arguments.index("--max_batch_size") + 1] == batch, arguments
        assert len(pods) == body["spec"]["replicas"], [pod["metadata"]["name"] for pod in pods]
        return bool(self.children("services") and self.children("poddisruptionbudgets"))

    def wait_converged(self, timeout_s: float = 60) -> None:
        wait_for(f"{self.name} to converge", self.is_converged, timeout_s)
