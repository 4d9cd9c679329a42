"""A live pod, reduced to what the control loop needs. Pure."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.control.deciding.waiting_reasons import STARTING
from ballast_operator.names import (
    ANNOTATION_ATTEMPT,
    ANNOTATION_FAILURES,
    ANNOTATION_POD_METADATA,
    ANNOTATION_SERVED,
    ANNOTATION_SETTINGS_HASH,
    ANNOTATION_SPEC_HASH,
    ENGINE_CONTAINER,
    ENV_RESTART,
    ENV_SPEC_HASH,
    labels_of,
)
from ballast_operator.resources.pod import Attempt, parse_pod_name, restart_of
from ballast_operator.spec_hash import settings_hash, spec_hash

CREATION_ANNOTATIONS = frozenset(
    {ANNOTATION_SPEC_HASH, ANNOTATION_SETTINGS_HASH, ANNOTATION_ATTEMPT, ANNOTATION_FAILURES}
)
"""Annotations about the creation of a pod, which a change of the spec does not change."""

EXITS_WHEN_STOPPED = (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of a container that a kubelet stopped."""

ADMISSION_REFUSALS = frozenset({"TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError"})
"""Reasons with which a kubelet rejects a pod: it cannot provide CPUs, memory and devices together."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container exited, from its status."""

    exit_code: int
    reason: str
    message: str
    load_limit_s: int | None = None
    """The load timeout that it exceeded, so that the kubelet ended it; None if it ended for another reason."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a service. Its replica is derived from its name, which cannot change."""

    body: Mapping[str, Any]
    name: str
    uid: str
    replica: int
    attempt: int
    failures: int
    spec_hash: str
    settings_hash: str
    """Hash of everything that it was created from; empty in pods of older operators."""
    restart: str
    """The restart that it was started for; empty if none was requested."""
    created: datetime
    phase: str
    reason: str
    message: str
    node: str | None
    ip: str | None
    terminating: bool
    finalizers: tuple[str, ...]
    """Foreign finalizers: the operator has none."""
    ready: bool
    served: bool
    """Whether it was ready before, according to its annotation or the kubelet."""
    unschedulable: str | None
    """The reason why the scheduler found no node; None if it found one or has not tried."""
    waiting: tuple[str, str] | None
    """Reason and message if the engine's container waits to be started."""
    restarts: int
    running: bool
    """The engine's container runs."""
    last_exit: ContainerExit | None
    """How the engine's container last exited."""
    volumes: frozenset[str]
    """Names of its volumes. An API server drops those of a kind that it does not know."""
    other_containers: tuple[str, ...]
    """Containers other than the engine's: sidecars of the spec, and injected ones."""
    blocked: tuple[str, str] | None
    """A container that must start before the engine and does not start, and the reason."""
    qos: str
    image: str
    """The engine's image in the pod's spec."""

    @classmethod
    def from_api(cls, body: Mapping[str, Any]) -> Pod:
        """Read it from the API's JSON. Removed fields are zero or empty."""
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
            spec_hash=_own_variable(body.get("spec") or {}, ENV_SPEC_HASH) or annotations.get(ANNOTATION_SPEC_HASH, ""),
            settings_hash=annotations.get(ANNOTATION_SETTINGS_HASH, ""),
            restart=_own_variable(body.get("spec") or {}, ENV_RESTART),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            phase=status.get("phase", "Pending"),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            node=(body.get("spec") or {}).get("nodeName"),
            ip=status.get("podIP"),
            terminating="deletionTimestamp" in metadata,
            finalizers=tuple(metadata.get("finalizers") or ()),
            ready=conditions.get("Ready", {}).get("status") == "True",
            served=ANNOTATION_SERVED in annotations or bool(engine.get("started")),
            unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else None,
            waiting=(state["waiting"].get("reason", ""), state["waiting"].get("message", ""))
            if "waiting" in state
            else None,
            restarts=engine.get("restartCount", 0),
            running="running" in state,
            last_exit=_engine_exit(state, body) or _engine_exit(engine.get("lastState") or {}, body),
            volumes=frozenset(volume["name"] for volume in (body.get("spec") or {}).get("volumes") or []),
            other_containers=_other_containers(body.get("spec") or {}),
            blocked=_blocked(status),
            qos=status.get("qosClass", ""),
            image=str(_engine_container(body.get("spec") or {}).get("image", "")),
        )

    @property
    def over(self) -> bool:
        """Whether it will never run again: the kubelet rejected or evicted it, or its node is lost."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def has_served(self) -> bool:
        """Whether clients were sent to it, now or earlier."""
        return self.ready or self.served

    @property
    def refused(self) -> bool:
        """Whether a kubelet did not admit it. An evicted pod, or one whose node was shut down, does not count."""
        return self.over and self.reason in ADMISSION_REFUSALS

    @property
    def incarnation(self) -> tuple[str, int]:
        """Identifies the process in it: changes with each restart."""
        return self.uid, self.restarts


def current_pods(service: InferenceService, pods: Sequence[Pod]) -> dict[int, Pod]:
    """Replica → pod that stays."""
    current_hash = spec_hash(service.spec)
    return {
        pod.replica: pod
        for pod in pods
        if not pod.over
        and not pod.terminating
        and pod.spec_hash == current_hash
        and pod.replica < service.spec.replicas
    }


def with_current_hash(service: InferenceService, pod: Pod) -> Pod:
    """The pod with the current spec hash if it was created from this spec; without a hash if it must be replaced.

    A pod that was not started for the last requested restart is replaced. A pod that was started for it stays, even
    after the request is removed.

    Older operators hashed more fields. A pod whose engine does not run loses nothing when it is replaced, so that it
    takes also what a running one does without: a pull secret, a longer load timeout, a toleration.
    """
    now, settings = spec_hash(service.spec), settings_hash(service.spec)
    if pod.spec_hash not in (now, settings):
        return pod
    if service.restarted_at and pod.restart != restart_of(service):
        return replace(pod, spec_hash="")
    if not pod.running and not pod.ready and pod.settings_hash not in ("", settings):
        return replace(pod, spec_hash="")
    return replace(pod, spec_hash=now)


def image_in_use(service: InferenceService, pods: Sequence[Pod]) -> str | None:
    """The image of the running pods of this spec, which the others get too; None if none runs.

    An operator that is upgraded during a rollout has another default image: without this, replicas of one spec would
    run different images.
    """
    running = [pod for _, pod in sorted(current_pods(service, pods).items()) if pod.running and pod.image]
    return running[0].image if running else None


def pod_patch(pod: Pod, want: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch for a pod that lacks labels, annotations, tolerations or its owner; None if it lacks nothing.

    `want`: the pod as it would be built. Tolerations are only added: the API allows no more. Images are not compared:
    an admission webhook may have put a mirror or a digest in place of one, and restoring it would restart the engine.
    """
    live, metadata = pod.body["metadata"], want["metadata"]
    patch: dict[str, Any] = {}
    labels = {k: v for k, v in metadata["labels"].items() if labels_of(pod.body).get(k) != v}
    has = live.get("annotations") or {}
    annotations = {
        k: v for k, v in metadata["annotations"].items() if k not in CREATION_ANNOTATIONS and has.get(k) != v
    }
    if pod.spec_hash and has.get(ANNOTATION_SPEC_HASH) != pod.spec_hash:
        annotations[ANNOTATION_SPEC_HASH] = pod.spec_hash
    if pod.ready and ANNOTATION_SERVED not in has:
        annotations[ANNOTATION_SERVED] = "true"
    requested_before = _requested_before(has.get(ANNOTATION_POD_METADATA))
    if ANNOTATION_POD_METADATA in has and ANNOTATION_POD_METADATA not in metadata["annotations"]:
        annotations[ANNOTATION_POD_METADATA] = None
    labels |= dict.fromkeys(requested_before["labels"] & labels_of(pod.body).keys() - metadata["labels"].keys())
    annotations |= dict.fromkeys(requested_before["annotations"] & has.keys() - metadata["annotations"].keys())
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


def _requested_before(text: str | None) -> dict[str, set[str]]:
    """The value that requested_metadata wrote; empty if it did not, or if the value was changed."""
    try:
        found = json.loads(text or "{}")
        return {part: {str(key) for key in found.get(part, [])} for part in ("labels", "annotations")}
    except (ValueError, TypeError, AttributeError):
        return {"labels": set(), "annotations": set()}


def _own_variable(spec: Mapping[str, Any], name: str) -> str:
    """The value that the operator set for this variable of the engine; empty in pods of older operators."""
    environment = _engine_container(spec).get("env") or []
    return next((str(item.get("value", "")) for item in environment if item["name"] == name), "")


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


def _engine_exit(state: Mapping[str, Any], pod: Mapping[str, Any]) -> ContainerExit | None:
    found = _container_exit(state)
    if found is None:
        return None
    return replace(found, load_limit_s=_exceeded_limit_s(found, state["terminated"], pod.get("spec") or {}))


def _exceeded_limit_s(found: ContainerExit, ended: Mapping[str, Any], spec: Mapping[str, Any]) -> int | None:
    """The startup probe's limit, if the container ended at the time at which a kubelet enforces it.

    No field reports this: an engine that a signal ended at another time did not exceed the limit.
    """
    probe = _engine_container(spec).get("startupProbe") or {}
    period_s, failures = probe.get("periodSeconds", 10), probe.get("failureThreshold", 3)
    if not probe or found.exit_code not in EXITS_WHEN_STOPPED or found.reason == "OOMKilled":
        return None
    try:
        ran = datetime.fromisoformat(ended["finishedAt"]) - datetime.fromisoformat(ended["startedAt"])
    except (KeyError, TypeError, ValueError):
        return None
    limit_s, leaving_s = int(period_s * failures), spec.get("terminationGracePeriodSeconds", 30)
    within = limit_s - 2 * period_s <= ran.total_seconds() <= limit_s + leaving_s + 2 * period_s
    return limit_s if within else None


def _other_containers(spec: Mapping[str, Any]) -> tuple[str, ...]:
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return tuple(item["name"] for item in containers if item["name"] != ENGINE_CONTAINER)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _blocked(status: Mapping[str, Any]) -> tuple[str, str] | None:
    for one in status.get("initContainerStatuses") or []:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in STARTING:
            ended = _container_exit(one.get("lastState") or {})
            last_words = f"; last: exit code {ended.exit_code} {ended.message.strip()[-500:]}" if ended else ""
            return one["name"], f"{waiting['reason']}: {waiting.get('message', '')}{last_words}"
    return None
