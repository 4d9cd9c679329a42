"""A live pod, reduced to what the control loop needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import (
    ANNOTATION_FAILURES,
    ANNOTATION_SPEC_HASH,
    ENGINE_CONTAINER,
    ENV_SPEC_HASH,
    labels_of,
)
from ballast_operator.resources.pod import Attempt, parse_pod_name
from ballast_operator.spec_hash import spec_hash

ADMISSION_REFUSALS = frozenset({"TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError"})
"""Reasons for which a kubelet refuses a pod: it cannot give it CPUs, memory and devices together."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container exited, from its status."""

    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a service. Its replica follows from its name, which nobody can change."""

    body: Mapping[str, Any]
    name: str
    uid: str
    replica: int
    attempt: int
    failures: int
    spec_hash: str
    created: datetime
    phase: str
    reason: str
    message: str
    node: str | None
    ip: str | None
    terminating: bool
    ready: bool
    unschedulable: str | None
    """Why the scheduler found no node; None if it did or has not tried."""
    waiting: tuple[str, str] | None
    """Reason and message if the engine's container waits to be started."""
    restarts: int
    running: bool
    """The engine's container runs."""
    last_exit: ContainerExit | None
    """How the engine's container last exited."""
    volumes: frozenset[str]
    """Names of its volumes. An API server drops those of a kind that it does not know."""
    injected_containers: tuple[str, ...]
    """Containers beside the engine's, which a webhook put in."""
    qos: str
    image: str
    """The engine's image, as the pod asks for it."""

    @classmethod
    def from_api(cls, body: Mapping[str, Any]) -> Pod:
        """Read it from the API's JSON. Fields that somebody removed read as zero or empty."""
        metadata, status = body["metadata"], body.get("status") or {}
        annotations = metadata.get("annotations") or {}
        engine = _engine_status(status)
        state = engine.get("state") or {}
        conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
        scheduled = conditions.get("PodScheduled", {})
        _, attempt = parse_pod_name(metadata["name"]) or ("", Attempt(0))
        return cls(
            body=body,
            name=metadata["name"],
            uid=metadata["uid"],
            replica=attempt.replica,
            attempt=attempt.number,
            failures=_number(annotations.get(ANNOTATION_FAILURES)),
            spec_hash=_made_from(body.get("spec") or {}) or annotations.get(ANNOTATION_SPEC_HASH, ""),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            phase=status.get("phase", "Pending"),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            node=(body.get("spec") or {}).get("nodeName"),
            ip=status.get("podIP"),
            terminating="deletionTimestamp" in metadata,
            ready=conditions.get("Ready", {}).get("status") == "True",
            unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else None,
            waiting=(state["waiting"].get("reason", ""), state["waiting"].get("message", ""))
            if "waiting" in state
            else None,
            restarts=engine.get("restartCount", 0),
            running="running" in state,
            last_exit=_container_exit(state) or _container_exit(engine.get("lastState") or {}),
            volumes=frozenset(volume["name"] for volume in (body.get("spec") or {}).get("volumes") or []),
            injected_containers=_injected_containers(body.get("spec") or {}),
            qos=status.get("qosClass", ""),
            image=str(_engine_container(body.get("spec") or {}).get("image", "")),
        )

    @property
    def over(self) -> bool:
        """Whether it will never run again: the kubelet refused or evicted it, or it was lost with its node."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def refused(self) -> bool:
        """Whether a kubelet did not admit it. An evicted pod, or one whose node was shut down, does not count."""
        return self.over and self.reason in ADMISSION_REFUSALS

    @property
    def incarnation(self) -> tuple[str, int]:
        """Identifies the process in it: changes with each restart."""
        return self.uid, self.restarts


def current_pods(service: InferenceService, pods: Sequence[Pod]) -> dict[int, Pod]:
    """The pods that are to stay, by replica."""
    current_hash = spec_hash(service.spec)
    return {
        pod.replica: pod
        for pod in pods
        if not pod.over
        and not pod.terminating
        and pod.spec_hash == current_hash
        and pod.replica < service.spec.replicas
    }


def metadata_patch(pod: Pod, want: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch for a pod whose labels or owner somebody changed; None where nothing was.

    `want`: the pod as it would be built. Images are not compared: an admission webhook may have put a mirror or a
    digest in place of one, and restoring it would restart the engine.
    """
    live, metadata = pod.body["metadata"], want["metadata"]
    patch: dict[str, Any] = {}
    labels = {k: v for k, v in metadata["labels"].items() if labels_of(pod.body).get(k) != v}
    if labels:
        patch["labels"] = labels
    if pod.spec_hash and (live.get("annotations") or {}).get(ANNOTATION_SPEC_HASH) != pod.spec_hash:
        patch["annotations"] = {ANNOTATION_SPEC_HASH: pod.spec_hash}
    if not any(
        owner.get("uid") == metadata["ownerReferences"][0]["uid"] for owner in live.get("ownerReferences") or []
    ):
        patch["ownerReferences"] = metadata["ownerReferences"]
    return {"metadata": patch} if patch else None


def _made_from(spec: Mapping[str, Any]) -> str:
    """The spec hash in the engine's environment; empty in pods of older operators, which only wrote the annotation."""
    environment = _engine_container(spec).get("env") or []
    return next((str(item.get("value", "")) for item in environment if item["name"] == ENV_SPEC_HASH), "")


def _engine_container(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    containers: list[Mapping[str, Any]] = spec.get("containers") or []
    return next((item for item in containers if item["name"] == ENGINE_CONTAINER), {})


def _engine_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses: list[Mapping[str, Any]] = status.get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == ENGINE_CONTAINER), {})


def _container_exit(state: Mapping[str, Any]) -> ContainerExit | None:
    ended = state.get("terminated")
    if ended is None:
        return None
    return ContainerExit(ended.get("exitCode", 0), ended.get("reason", ""), ended.get("message", ""))


def _injected_containers(spec: Mapping[str, Any]) -> tuple[str, ...]:
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return tuple(item["name"] for item in containers if item["name"] != ENGINE_CONTAINER)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
