"""What a live pod says, in the words of the control loop. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ballast_operator.names import (
    ANNOTATION_FAILURES,
    ANNOTATION_SPEC_HASH,
    ENGINE_CONTAINER,
    ENV_SPEC_HASH,
)
from ballast_operator.resources.pod import Attempt, parse_pod_name

ADMISSION_REFUSALS = frozenset({"TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError"})
"""Reasons of a kubelet that cannot give a pod its CPUs, memory or devices together."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a service. Which replica it is says its name, which nobody can change."""

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
    """Why the scheduler found no node."""
    waiting: tuple[str, str] | None
    """Reason and message for which the engine's container does not run."""
    restarts: int
    running: bool
    """The engine's container runs."""
    ended: Ending | None
    """The last end of the engine's container."""
    volumes: frozenset[str]
    """Names. An API server drops volumes of a kind that it does not know."""
    strangers: tuple[str, ...]
    """Containers that were put in beside the engine."""
    qos: str

    @classmethod
    def from_api(cls, body: Mapping[str, Any]) -> Pod:
        """From the API's form. What somebody has removed from it reads as zero or empty."""
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
            ended=_ending(state) or _ending(engine.get("lastState") or {}),
            volumes=frozenset(volume["name"] for volume in (body.get("spec") or {}).get("volumes") or []),
            strangers=_strangers(body.get("spec") or {}),
            qos=status.get("qosClass", ""),
        )

    @property
    def over(self) -> bool:
        """It will never run again: refused by the kubelet, evicted, or lost with its node."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def refused(self) -> bool:
        """A kubelet did not admit it; an eviction or a shutdown of its node is something else."""
        return self.over and self.reason in ADMISSION_REFUSALS

    @property
    def incarnation(self) -> tuple[str, int]:
        """Changes whenever another process runs in it."""
        return self.uid, self.restarts


def metadata_patch(pod: Pod, want: Mapping[str, Any]) -> dict[str, Any] | None:
    """What to merge into a pod whose labels or owner somebody changed; None when all is well.

    `want` is the pod as it would be built. Images are not compared: an admission webhook may have put a mirror or a
    digest in their place, and giving one back would restart the model.
    """
    live, metadata = pod.body["metadata"], want["metadata"]
    patch: dict[str, Any] = {}
    labels = {k: v for k, v in metadata["labels"].items() if (live.get("labels") or {}).get(k) != v}
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
    """The spec hash in the engine's environment; empty for pods of operators that wrote the annotation alone."""
    engine: Mapping[str, Any] = next(
        (item for item in spec.get("containers") or [] if item["name"] == ENGINE_CONTAINER), {}
    )
    return next((str(item.get("value", "")) for item in engine.get("env") or [] if item["name"] == ENV_SPEC_HASH), "")


def _engine_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses: list[Mapping[str, Any]] = status.get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == ENGINE_CONTAINER), {})


def _ending(state: Mapping[str, Any]) -> Ending | None:
    ended = state.get("terminated")
    if ended is None:
        return None
    return Ending(ended.get("exitCode", 0), ended.get("reason", ""), ended.get("message", ""))


def _strangers(spec: Mapping[str, Any]) -> tuple[str, ...]:
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return tuple(item["name"] for item in containers if item["name"] != ENGINE_CONTAINER)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
