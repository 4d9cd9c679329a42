"""A live pod, reduced to what the control loop needs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import (
    ANNOTATION_ATTEMPT,
    ANNOTATION_FAILURES,
    ANNOTATION_POD_METADATA,
    ANNOTATION_SETTINGS_HASH,
    ANNOTATION_SPEC_HASH,
    ENGINE_CONTAINER,
    ENV_SPEC_HASH,
    labels_of,
)
from ballast_operator.resources.pod import Attempt, parse_pod_name
from ballast_operator.spec_hash import settings_hash, spec_hash

OF_ITS_MAKING = frozenset({ANNOTATION_SPEC_HASH, ANNOTATION_SETTINGS_HASH, ANNOTATION_ATTEMPT, ANNOTATION_FAILURES})
"""Annotations that say how a pod was made, which a change of the spec does not change."""

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
    settings_hash: str
    """Of all that it was made from; empty in pods of older operators."""
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
            settings_hash=annotations.get(ANNOTATION_SETTINGS_HASH, ""),
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


def judged_by(service: InferenceService, pod: Pod) -> Pod:
    """The pod with today's spec hash where it was made from this very spec; with none where it is to be replaced.

    Older operators hashed more fields. A pod whose engine does not run loses nothing when it is replaced, so that it
    takes also what a running one does without: a pull secret, a longer load timeout, a toleration.
    """
    now, settings = spec_hash(service.spec), settings_hash(service.spec)
    if pod.spec_hash not in (now, settings):
        return pod
    if not pod.running and not pod.ready and pod.settings_hash not in ("", settings):
        return replace(pod, spec_hash="")
    return replace(pod, spec_hash=now)


def image_in_use(service: InferenceService, pods: Sequence[Pod]) -> str | None:
    """The image that the running pods of this spec have, which the others get too; None where none runs.

    An operator that is upgraded in the middle of a rollout has another default image: without this, replicas of one
    spec would run several.
    """
    running = [pod for _, pod in sorted(current_pods(service, pods).items()) if pod.running and pod.image]
    return running[0].image if running else None


def pod_patch(pod: Pod, want: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch for a pod that lacks labels, annotations, tolerations or its owner; None where it lacks nothing.

    `want`: the pod as it would be built. Tolerations are only added: the API allows no more. Images are not compared:
    an admission webhook may have put a mirror or a digest in place of one, and restoring it would restart the engine.
    """
    live, metadata = pod.body["metadata"], want["metadata"]
    patch: dict[str, Any] = {}
    labels = {k: v for k, v in metadata["labels"].items() if labels_of(pod.body).get(k) != v}
    has = live.get("annotations") or {}
    annotations = {k: v for k, v in metadata["annotations"].items() if k not in OF_ITS_MAKING and has.get(k) != v}
    if pod.spec_hash and has.get(ANNOTATION_SPEC_HASH) != pod.spec_hash:
        annotations[ANNOTATION_SPEC_HASH] = pod.spec_hash
    asked_before = _asked_before(has.get(ANNOTATION_POD_METADATA))
    if ANNOTATION_POD_METADATA in has and ANNOTATION_POD_METADATA not in metadata["annotations"]:
        annotations[ANNOTATION_POD_METADATA] = None
    labels |= dict.fromkeys(asked_before["labels"] & labels_of(pod.body).keys() - metadata["labels"].keys())
    annotations |= dict.fromkeys(asked_before["annotations"] & has.keys() - metadata["annotations"].keys())
    if labels:
        patch["labels"] = labels
    if annotations:
        patch["annotations"] = annotations
    if not any(
        owner.get("uid") == metadata["ownerReferences"][0]["uid"] for owner in live.get("ownerReferences") or []
    ):
        patch["ownerReferences"] = metadata["ownerReferences"]
    tolerated = (pod.body.get("spec") or {}).get("tolerations") or []
    added = [found for found in want["spec"].get("tolerations", []) if found not in tolerated]
    return {
        **({"metadata": patch} if patch else {}),
        **({"spec": {"tolerations": [*tolerated, *added]}} if added else {}),
    } or None


def _asked_before(text: str | None) -> dict[str, set[str]]:
    """What asked_metadata wrote; empty where it did not, or somebody else wrote there."""
    try:
        found = json.loads(text or "{}")
        return {part: {str(key) for key in found.get(part, [])} for part in ("labels", "annotations")}
    except (ValueError, TypeError, AttributeError):
        return {"labels": set(), "annotations": set()}


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
