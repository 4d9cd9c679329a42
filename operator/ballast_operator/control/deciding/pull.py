"""Determines the state of a pull from its Job and the Job's pods, and whether its Job must be created again. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.control.deciding.waiting_reasons import BACKING_OFF, STARTING
from ballast_operator.resources.pulling.job_pod import ANNOTATION_TEMPLATE, LABEL_PULL, PULL_CONTAINER
from ballast_operator.resources.pulling.pull_job import ANNOTATION_PULLED

FIRST_LOOK_S, LAST_LOOK_S = 1.0, 10.0
LATE_FRACTION = 0.25
"""Fraction of a pull's duration by which its end may be noticed late."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why a pull fails: one word for programs, and the message of the component that reported it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pull:
    """The state of a pull: done, in trouble, or neither while it starts and runs."""

    done: bool = False
    report: str = ""
    """Its final report: the model with its commit."""
    trouble: Trouble | None = None
    running: bool = False
    """May be true together with a trouble, which is then that of the previous attempt."""
    ip: str | None = None
    """Address to query the progress, while it runs."""
    progress: float | None = None
    """Fraction that is downloaded, 0 to 1; None while unknown."""


def judge(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> Pull:
    """The state of the pull. `pods`: the Job's pods, in any order."""
    if job is None:
        return Pull()
    newest = max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]), default=None)
    ended = {found["type"]: found for found in (job.get("status") or {}).get("conditions") or [] if _holds(found)}
    if "Complete" in ended:
        kept = (job["metadata"].get("annotations") or {}).get(ANNOTATION_PULLED, "")
        return Pull(done=True, report=kept if newest is None else _report(newest).message)
    if "Failed" in ended:
        why = ended["Failed"]
        return Pull(trouble=Trouble("PullFailed", f"{why.get('reason', '')}: {why.get('message', '')}"))
    if newest is None:
        return Pull()
    status = newest.get("status") or {}
    if status.get("phase") == "Failed":  # the Job creates another one soon
        return Pull(trouble=_of_a_failed_pod(status))
    container = _container(status)
    state = container.get("state") or {}
    if "running" in state:
        failure = _failure(container.get("lastState") or {})
        evicted = next((pod for pod in _oldest_first(pods) if (pod.get("status") or {}).get("phase") == "Failed"), None)
        before = _of_a_failed_pod(evicted["status"]) if failure is None and evicted is not None else failure
        return Pull(running=True, ip=status.get("podIP"), trouble=before)
    if (failure := _failure(state) or _failure(container.get("lastState") or {})) is not None:
        return Pull(trouble=failure)
    waiting = state.get("waiting") or {}
    if waiting.get("reason", "") not in (*STARTING, BACKING_OFF):
        return Pull(trouble=Trouble(waiting["reason"], waiting.get("message", "")))
    scheduled: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        return Pull(trouble=Trouble("Unschedulable", scheduled.get("message", "")))
    return Pull()


def next_look_s(since_s: float) -> float:
    """Seconds until the next look at a pull that was first seen `since_s` seconds ago. Jobs are not watched; a small
    model takes seconds, a large one hours."""
    return min(max(since_s * LATE_FRACTION, FIRST_LOOK_S), LAST_LOOK_S)


def is_ours(job: Mapping[str, Any]) -> bool:
    """Whether an operator created the Job."""
    metadata = job["metadata"]
    return bool((metadata.get("labels") or {}).get(LABEL_PULL) == metadata["name"])


def owners(job: Mapping[str, Any], service: Mapping[str, str], claim: Mapping[str, str] | None) -> list[Any]:
    """The owner references of a Job while it runs: the services that use it, including `service`, but not the claim.
    An object owned by the claim would stay until the claim is gone, which the Job's pod prevents."""
    have = job["metadata"].get("ownerReferences") or []
    kept = [owner for owner in have if claim is None or owner["uid"] != claim["uid"]]
    return kept if any(owner["uid"] == service["uid"] for owner in kept) else [*kept, service]


def is_outdated(job: Mapping[str, Any], wanted: Mapping[str, Any], pull: Pull) -> bool:
    """Whether a failing Job was created from another template than the wanted one, for example with another image. A
    running attempt is not replaced: another service that shares the pull may have created it."""
    made_from = (job["metadata"].get("annotations") or {}).get(ANNOTATION_TEMPLATE)
    return (
        not pull.done
        and not pull.running
        and pull.trouble is not None
        and made_from != wanted["metadata"]["annotations"][ANNOTATION_TEMPLATE]
    )


def _oldest_first(pods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def _holds(condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("status") == "True")


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = status.get("containerStatuses") or []
    return next((one for one in found if one.get("name") == PULL_CONTAINER), {})


def _of_a_failed_pod(status: Mapping[str, Any]) -> Trouble:
    """The reason why a pod ended: its container's message, or for example an eviction."""
    if (reason := status.get("reason", "")) == "Evicted":
        return Trouble("Evicted", status.get("message", ""))
    failure = _failure(_container(status).get("state") or {})
    return failure or Trouble(reason or "PullFailed", status.get("message", ""))


def _report(pod: Mapping[str, Any]) -> Trouble:
    return _read((_container(pod.get("status") or {}).get("state") or {}).get("terminated") or {})


def _failure(state: Mapping[str, Any]) -> Trouble | None:
    """The reason why a container failed; None if it did not end, or succeeded."""
    ended = state.get("terminated")
    if ended is None or ended.get("exitCode") == 0:
        return None
    return _read(ended)


def _read(ended: Mapping[str, Any]) -> Trouble:
    """The report of the pull. It comes from a container and may be malformed."""
    text = str(ended.get("message") or "")
    try:
        failure = json.loads(text)
        return Trouble(str(failure["reason"])[:64], str(failure["message"])[:2000])
    except (ValueError, KeyError, TypeError, RecursionError):
        if ended.get("reason") == "OOMKilled":
            return Trouble("OutOfMemory", "the kernel killed the process")
        last = text.strip().splitlines()[-1][:2000] if text.strip() else f"exit code {ended.get('exitCode')}"
        return Trouble("PullFailed", last)
