"""Makes the cluster as it is wanted: the only writer of children."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import POD, kind_of
from ballast_operator.control.drift import has_drifted, stamped
from ballast_operator.control.observe import Observed
from ballast_operator.control.ownership import conflict, is_ours
from ballast_operator.control.pods import Pod, metadata_patch
from ballast_operator.control.rollout import Rollout
from ballast_operator.resources.pod import Attempt

log = logging.getLogger(__name__)

REFUSED = (400, 403, 413, 422)
"""Answers that say that this object cannot be accepted as it is, by a rule, a quota or a permission."""


@dataclass(slots=True)
class Outcome:
    """What stood in the way."""

    conflicts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    """Resource versions, by uid, of what was written."""


async def apply_children(
    api: Api, service: InferenceService, wanted: Sequence[dict[str, Any]], seen: Observed, outcome: Outcome
) -> None:
    """Apply what is missing or changed, delete what is ours and no longer wanted. Raises ApiError for hiccups."""
    names = set()
    for child in map(stamped, wanted):
        kind, name = kind_of(child), child["metadata"]["name"]
        names.add((kind, name))
        live = seen.children.get((kind, name))
        if live is not None and not is_ours(live, service.uid):
            outcome.conflicts.append(conflict(live))
        elif live is None or ("deletionTimestamp" not in live["metadata"] and has_drifted(child, live)):
            # With the uid, an object that took the name meanwhile is refused and not overwritten.
            uid = {} if live is None else {"uid": live["metadata"]["uid"]}
            body = {**child, "metadata": {**child["metadata"], **uid}}
            await _try(outcome, f"{kind.name} {name}", api.apply(kind, body))
            log.info("applied", extra={"kind": kind.name, "object": name, "service": str(service.ref)})
    for (kind, name), live in seen.children.items():
        if (kind, name) not in names and is_ours(live, service.uid) and "deletionTimestamp" not in live["metadata"]:
            await api.delete(kind, live)
            log.info("deleted", extra={"kind": kind.name, "object": name, "service": str(service.ref)})


async def apply_rollout(
    api: Api, service: InferenceService, rollout: Rollout, build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Forget, stop and start pods. A name that is taken is looked at. Raises ApiError for hiccups."""
    for pod in (*rollout.forget, *rollout.stop):
        await api.delete(POD, pod.body)
        log.info("pod deleted", extra={"pod": pod.name, "service": str(service.ref)})
    for attempt in rollout.start:
        body = build(attempt)
        try:
            await _try(outcome, f"Pod {body['metadata']['name']}", api.create(POD, body, service.ref.namespace))
            log.info("pod created", extra={"pod": body["metadata"]["name"], "service": str(service.ref)})
        except ApiError as error:
            if error.status != 409:
                raise
            await _meet(api, service, body, outcome)


async def heal_pods(
    api: Api, pods: Sequence[Pod], build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Give back labels, owner and image that somebody changed. Raises ApiError for hiccups."""
    for pod in pods:
        await _heal(api, pod, build(Attempt(pod.replica, pod.attempt, pod.failures)), outcome)


async def _heal(api: Api, pod: Pod, want: dict[str, Any], outcome: Outcome) -> None:
    patch = metadata_patch(pod, want)
    if patch is not None:
        namespace = want["metadata"]["namespace"]
        await _try(outcome, f"Pod {pod.name}", api.merge(POD, namespace, pod.name, patch))
        log.info("pod healed", extra={"pod": pod.name})


async def _meet(api: Api, service: InferenceService, body: dict[str, Any], outcome: Outcome) -> None:
    """The name is taken: by ours that lost its labels, by a stranger, or by nobody any more."""
    live = await api.get(POD, service.ref.namespace, body["metadata"]["name"])
    if live is None:
        raise ApiError(f"create Pod {body['metadata']['name']}", 409, "its name was taken a moment ago")
    if not is_ours(live, service.uid):
        outcome.conflicts.append(conflict(live))
    else:
        await _heal(api, Pod.from_api(live), body, outcome)


async def _try(outcome: Outcome, what: str, write: Awaitable[Any]) -> None:
    """Write; a refusal becomes a sentence for the status, a hiccup goes on to the queue."""
    try:
        await write
    except ApiError as error:
        if error.status not in REFUSED:
            raise
        outcome.refusals.append(f"the API server refuses {what}: {error.message}")
