"""What became of a pull, by its Job, the Job's pods and the claim; and whether its Job has to be made anew. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.control.deciding.waiting_reasons import BACKING_OFF, STARTING
from ballast_operator.resources.pulling.job_pod import ANNOTATION_TEMPLATE, LABEL_PULL, PULL_CONTAINER
from ballast_operator.resources.pulling.pull_job import ANNOTATION_PULLED

FIRST_LOOK_S, LAST_LOOK_S = 1.0, 10.0
LATE_SHARE = 0.25
"""Of how long a pull took, by which its end may be noticed late."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pull gets nowhere: one word for programs, and what whoever noticed it said."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pull:
    """How far a pull is. It is done, or has a trouble, or neither, while it starts and goes on."""

    done: bool = False
    report: str = ""
    """What it said when it was done: the model with its commit."""
    trouble: Trouble | None = None
    running: bool = False
    """Also beside a trouble: of the attempt before."""
    ip: str | None = None
    """Where the progress can be asked for, while it runs."""
    progress: float | None = None
    """Share that is there, 0 to 1; None while it is not known."""


def judge(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> Pull:
    """What became of the pull. `pods`: those of the Job, in any order."""
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
    if status.get("phase") == "Failed":  # the Job makes another in a moment
        return Pull(trouble=_of_a_failed_pod(status))
    container = _container(status)
    state = container.get("state") or {}
    if "running" in state:
        said = _said(container.get("lastState") or {})
        evicted = next((pod for pod in _oldest_first(pods) if (pod.get("status") or {}).get("phase") == "Failed"), None)
        before = _of_a_failed_pod(evicted["status"]) if said is None and evicted is not None else said
        return Pull(running=True, ip=status.get("podIP"), trouble=before)
    if (said := _said(state) or _said(container.get("lastState") or {})) is not None:
        return Pull(trouble=said)
    waiting = state.get("waiting") or {}
    if waiting.get("reason", "") not in (*STARTING, BACKING_OFF):
        return Pull(trouble=Trouble(waiting["reason"], waiting.get("message", "")))
    scheduled: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        return Pull(trouble=Trouble("Unschedulable", scheduled.get("message", "")))
    return Pull()


def next_look_s(since_s: float) -> float:
    """Seconds until a pull that was first seen `since_s` seconds ago is looked at again. Jobs are not watched; a small
    model is pulled in seconds, a large one in hours."""
    return min(max(since_s * LATE_SHARE, FIRST_LOOK_S), LAST_LOOK_S)


def is_ours(job: Mapping[str, Any]) -> bool:
    """Whether the Job is one that an operator made."""
    metadata = job["metadata"]
    return bool((metadata.get("labels") or {}).get(LABEL_PULL) == metadata["name"])


def owners(job: Mapping[str, Any], service: Mapping[str, str], claim: Mapping[str, str] | None) -> list[Any]:
    """The owner references that a live Job is to have while it goes on: the services that name it, `service` too.
    Not the claim's: what it owned would stay until it has gone, and it cannot go while the Job's pod exists."""
    have = job["metadata"].get("ownerReferences") or []
    kept = [owner for owner in have if claim is None or owner["uid"] != claim["uid"]]
    return kept if any(owner["uid"] == service["uid"] for owner in kept) else [*kept, service]


def is_outdated(job: Mapping[str, Any], wanted: Mapping[str, Any], pull: Pull) -> bool:
    """Whether a Job that gets nowhere was made from something else than what is wanted now: another image, say. While
    an attempt runs it is left alone: another service that shares the pull may have made it."""
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
    """Why a pod ended: what its container said, or who ended it, such as a kubelet that evicts."""
    if (reason := status.get("reason", "")) == "Evicted":
        return Trouble("Evicted", status.get("message", ""))
    said = _said(_container(status).get("state") or {})
    return said or Trouble(reason or "PullFailed", status.get("message", ""))


def _report(pod: Mapping[str, Any]) -> Trouble:
    return _read((_container(pod.get("status") or {}).get("state") or {}).get("terminated") or {})


def _said(state: Mapping[str, Any]) -> Trouble | None:
    """Why a container ended; None for one that did not, or that was done."""
    ended = state.get("terminated")
    if ended is None or ended.get("exitCode") == 0:
        return None
    return _read(ended)


def _read(ended: Mapping[str, Any]) -> Trouble:
    """The report of the pull, which comes from a container and may be anything."""
    text = str(ended.get("message") or "")
    try:
        said = json.loads(text)
        return Trouble(str(said["reason"])[:64], str(said["message"])[:2000])
    except (ValueError, KeyError, TypeError, RecursionError):
        if ended.get("reason") == "OOMKilled":
            return Trouble("OutOfMemory", "the kernel ended it")
        last = text.strip().splitlines()[-1][:2000] if text.strip() else f"exit code {ended.get('exitCode')}"
        return Trouble("PullFailed", last)
