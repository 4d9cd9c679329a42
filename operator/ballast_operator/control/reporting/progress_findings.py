"""Checks whether a service that does not match its spec yet makes progress. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.control.deciding.live_pod import Pod, current_pods
from ballast_operator.control.deciding.waiting_reasons import NOT_CREATED
from ballast_operator.control.reporting.conditions import PROGRESSING, READY, SIDECAR_NOT_STARTED, Finding
from ballast_operator.control.reporting.evidence import Evidence
from ballast_operator.control.reporting.exit_reasons import MEANINGS, explain
from ballast_operator.resources.pod import load_timeout_s
from ballast_operator.spec_hash import spec_hash

DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
UP_TO_DATE = "UpToDate"
FINAL = frozenset({"ConfigInvalid", "ModelUnusable", "ImageVolumeUnsupported"})
"""Reasons that another attempt with the same spec cannot change."""
FAILURES = frozenset({*MEANINGS, SIDECAR_NOT_STARTED, *NOT_CREATED})
"""Reasons for which a spec is not tried again on a serving pod's resources."""
INVALID_IMAGE = "InvalidImageName"


def judge_progress(
    service: InferenceService, seen: Evidence, current: Mapping[int, Pod], step: Finding, found: Iterable[Finding]
) -> Finding:
    """The current step, or the reason why the service makes no progress.

    `step`: Progressing derived from the step alone. `found`: the findings that Ready is derived from.
    """
    if not step.holds and not _is_delayed(seen, step):
        return step
    trouble = next((finding for finding in found if finding.is_fault), None)
    if (final := _final(current, trouble)) is not None:
        return final
    limit_s = service.spec.rollout.progress_deadline_seconds
    if trouble is None:  # it loads, or drains
        limit_s += load_timeout_s(service)
        limit_s += service.spec.engine.drain_timeout_seconds if seen.rollout.leaving else 0
    if not seen.failed and seen.idle_s < limit_s:
        return step
    last = trouble or step
    message = f"no progress within rollout.progressDeadlineSeconds; {last.reason}: {last.message}"
    return Finding("False", DEADLINE_EXCEEDED, message)


def find_stalled(seen: Evidence, ready: Finding, progressing: Finding) -> Finding | None:
    """The condition that tools with kstatus conventions treat as a failure; None if there is none."""
    if ready.holds or ready.reason == "ScaledToZero" or progressing.status != "False":
        return None
    if _is_delayed(seen, progressing):
        return None
    if progressing.reason == UP_TO_DATE and not ready.is_fault:
        return None  # for example between the readiness of a pod and its endpoint
    return Finding("True", progressing.reason, progressing.message)


def _is_delayed(seen: Evidence, step: Finding) -> bool:
    """Whether the step is blocked only by objects that readiness does not need."""
    pull_fails = seen.pulled is not None and seen.pulled.is_fault
    return step.reason == "Blocked" and bool(seen.delays) and not (seen.conflicts or seen.refusals or pull_fails)


def was_reported_as_failed(status: Mapping[str, Any], generation: int) -> bool:
    """Whether this status says that the deadline was exceeded for this generation."""
    return any(
        condition["type"] == PROGRESSING
        and (condition["status"], condition["reason"]) == ("False", DEADLINE_EXCEEDED)
        and condition.get("observedGeneration") == generation
        for condition in status.get("conditions") or ()
    )


def attempt_failed(service: InferenceService, pods: Sequence[Pod], status: Mapping[str, Any]) -> Finding | None:
    """Why no serving pod is stopped for another attempt with this spec: a container has failed in a surge pod, or in a
    pod that was removed because the service was scaled down. None if that is not so, if a surge pod of this spec
    serves, or if pods of this spec are replaced for a restart: `with_current_hash` has removed their hash.

    `pods`: all pods of the service. `status`: that of the last pass, which has the reason once the pod is gone.
    """
    present = spec_hash(service.spec)
    has_worked = any(pod.ready if pod.spec_hash == present else pod.has_served and not pod.spec_hash for pod in pods)
    if has_worked or current_pods(service, pods):
        return None
    tried = [pod for pod in pods if pod.spec_hash == present and not pod.has_served]
    failures = [(pod, why) for pod in tried if (why := _failure(pod)) is not None]
    reasons = [why for _, why in failures]
    if status.get("specHash") == present:
        reasons += [it["reason"] for it in status.get("conditions") or () if it["type"] == READY]
    reason = next((reason for reason in reasons if reason in FAILURES), None)
    if reason is None:
        return None
    surge = range(service.spec.replicas, service.spec.replicas + service.spec.rollout.max_surge)
    failed = [pod.name for pod, _ in failures if pod.replica in surge and not pod.terminating]
    if failed:
        return Finding("False", reason, f"{failed[0]}, a surge pod of this spec, has failed: change the spec")
    message = "a pod of this spec failed before the service was scaled down: change the spec, or try again with more "
    return Finding("False", reason, f"{message}replicas or with rollout.maxSurge")


def _failure(pod: Pod) -> str | None:
    """The reason why one of its containers does not run; None if none has failed."""
    if pod.last_exit is not None:
        return explain(pod.last_exit)[0]
    if pod.waiting is not None and pod.waiting[0] in NOT_CREATED:
        return pod.waiting[0]
    return None if pod.blocked is None else SIDECAR_NOT_STARTED


def _final(current: Mapping[int, Pod], trouble: Finding | None) -> Finding | None:
    """The reason that makes further attempts useless. An engine that was restarted may run for a moment."""
    for pod in current.values():
        if pod.ready:
            continue
        if pod.waiting is not None and pod.waiting[0] == INVALID_IMAGE:
            return Finding("False", "ImagePullFailed", f"{pod.name}: {pod.waiting[1] or INVALID_IMAGE}")
        if pod.last_exit is not None and (why := explain(pod.last_exit))[0] in FINAL:
            return Finding("False", why[0], f"{pod.name}: {why[1]}")
    if trouble is not None and trouble.reason in FINAL:
        return Finding("False", trouble.reason, trouble.message)
    return None
