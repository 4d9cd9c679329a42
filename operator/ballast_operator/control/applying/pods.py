"""Writes the pods: starts and stops them, and repairs their metadata."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import POD
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.control.deciding.live_pod import Pod, pod_patch
from ballast_operator.control.deciding.ownership import conflict, is_ours
from ballast_operator.control.deciding.rollout import Rollout
from ballast_operator.resources.pod import Attempt

log = logging.getLogger(__name__)

NO_DRY_RUN = "does not support dry run"
"""Part of the API server's message if a webhook with side effects would be called."""
OVER_QUOTA = "exceeded quota"
"""Part of its message if a quota is used up, possibly by the pod that would be replaced."""


async def apply_rollout(
    api: Api, service: InferenceService, rollout: Rollout, build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Delete and create the pods of the step. A failure does not stop the other writes."""
    for pod in (*rollout.forget, *rollout.stop):
        # A pod of an earlier spec may have become ready, or not ready, since it was read.
        if await _try(
            outcome, f"to delete Pod {pod.name}", api.delete(POD, pod.body, unchanged=pod in rollout.outdated)
        ):
            log.info("pod deleted", extra={"pod": pod.name, "service": str(service.ref)})
    for attempt in rollout.start:
        body = build(attempt)
        policy = service.spec.rollout
        is_surge = (
            attempt.replica >= service.spec.replicas and policy.max_unavailable > 0
        )  # the rollout continues without it
        await _try(outcome, f"Pod {body['metadata']['name']}", _create(api, service, body, outcome), optional=is_surge)


async def is_acceptable(
    api: Api, service: InferenceService, pod: Pod, successor: dict[str, Any], outcome: Outcome
) -> bool:
    """Check by a dry run whether the API server would accept the successor of this pod. A rejection is recorded."""
    try:
        await api.try_create(POD, successor, service.ref.namespace)
    except ApiError as error:
        if _is_inconclusive(error.status, error.message):
            return True
        outcome.failed(f"the successor of {pod.name}, which therefore stays", error)
        return False
    return True


async def heal_pods(
    api: Api, pods: Sequence[Pod], build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Restore changed fields of running pods, and apply changes without a restart. A failure does not stop the rest."""
    for pod in pods:
        await _heal(api, pod, build(Attempt(pod.replica, pod.attempt, pod.failures)), outcome)


async def _heal(api: Api, pod: Pod, want: dict[str, Any], outcome: Outcome) -> None:
    patch = pod_patch(pod, want)
    if patch is not None:
        namespace = want["metadata"]["namespace"]
        if await _try(outcome, f"Pod {pod.name}", api.merge(POD, namespace, pod.name, patch)):
            log.info("pod healed", extra={"pod": pod.name})


async def _create(api: Api, service: InferenceService, body: dict[str, Any], outcome: Outcome) -> None:
    try:
        await api.create(POD, body, service.ref.namespace)
        log.info("pod created", extra={"pod": body["metadata"]["name"], "service": str(service.ref)})
    except ApiError as error:
        if error.status != 409:
            raise
        await _handle_taken_name(api, service, body, outcome)


async def _handle_taken_name(api: Api, service: InferenceService, body: dict[str, Any], outcome: Outcome) -> None:
    """The name is taken by our own pod that lost its labels, by a foreign pod, or by one that no longer exists."""
    live = await api.get(POD, service.ref.namespace, body["metadata"]["name"])
    if live is None:
        raise ApiError(f"create Pod {body['metadata']['name']}", 409, "its name was taken a moment ago")
    if not is_ours(live, service):
        outcome.conflicts.append(conflict(live, service))
    else:
        await _heal(api, Pod.from_api(live), body, outcome)


async def _try(outcome: Outcome, what: str, write: Awaitable[Any], *, optional: bool = False) -> bool:
    """Whether the write succeeded; a failure is recorded in the outcome."""
    try:
        await write
    except ApiError as error:
        outcome.failed(what, error, optional=optional)
        return False
    return True


def _is_inconclusive(status: int, message: str) -> bool:
    """Whether a rejected dry run is inconclusive: it could not be tried, or another object uses the quota."""
    return (status == 400 and NO_DRY_RUN in message) or (status == 403 and OVER_QUOTA in message)
