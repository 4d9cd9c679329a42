"""Makes the cluster as it is wanted: the only writer of children."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import CONFIG_MAP, NETWORK_POLICY, POD, Kind, kind_of
from ballast_operator.control.drift import has_drifted, stamped
from ballast_operator.control.observe import Observed
from ballast_operator.control.ownership import conflict, is_ours
from ballast_operator.control.pods import Pod, metadata_patch
from ballast_operator.control.rollout import Rollout
from ballast_operator.resources.pod import Attempt

log = logging.getLogger(__name__)

REFUSED = (400, 403, 413, 422)
"""Answers that say that this object cannot be accepted as it is, by a rule, a quota or a permission."""

LASTING = (*REFUSED, 500)
"""Answers that may come for ever: an admission webhook that is down is an internal error."""

BEFORE_PODS = (CONFIG_MAP, NETWORK_POLICY)
"""Without them a pod would run by other rules, or be open to callers that the spec keeps out."""


@dataclass(slots=True)
class Outcome:
    """What stood in the way."""

    conflicts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    """What is not done yet, and does not keep the service from being ready."""
    errors: list[ApiError] = field(default_factory=list)
    """Hiccups, for the queue."""
    holds_pods: bool = False
    """Something that must come before pods is not there."""

    def failed(self, what: str, error: ApiError, *, optional: bool = False) -> None:
        """A refusal becomes a sentence for the status, and a hiccup goes on to the queue, once all else is done."""
        if error.status not in REFUSED:
            self.errors.append(error)
        if error.status in LASTING:
            told = self.delays if optional or error.status not in REFUSED else self.refusals
            told.append(f"the API server refuses {what}: {error.message}")

    def child_failed(self, kind: Kind, name: str, error: ApiError) -> None:
        """The same of a child that is wanted."""
        self.failed(f"{kind.name} {name}", error, optional=kind.optional)
        self.holds_pods |= kind in BEFORE_PODS


async def apply_children(
    api: Api, service: InferenceService, wanted: Sequence[dict[str, Any]], seen: Observed, outcome: Outcome
) -> None:
    """Apply what is missing or changed, delete what is ours and no longer wanted. One that fails stops no other."""
    names = set()
    for child in map(stamped, wanted):
        kind, name = kind_of(child), child["metadata"]["name"]
        names.add((kind, name))
        live = seen.children.get((kind, name))
        if (unread := seen.unread.get((kind, name))) is not None:
            outcome.child_failed(kind, name, unread)
        elif live is not None and not is_ours(live, service.uid):
            outcome.conflicts.append(conflict(live))
        elif live is None or ("deletionTimestamp" not in live["metadata"] and has_drifted(child, live)):
            # With the uid, an object that took the name meanwhile is refused and not overwritten.
            uid = {} if live is None else {"uid": live["metadata"]["uid"]}
            body = {**child, "metadata": {**child["metadata"], **uid}}
            try:
                await api.apply(kind, body)
                log.info("applied", extra={"kind": kind.name, "object": name, "service": str(service.ref)})
            except ApiError as error:
                outcome.child_failed(kind, name, error)
    await _delete_unwanted(api, service, names, seen, outcome)


async def _delete_unwanted(
    api: Api, service: InferenceService, names: Container[tuple[Kind, str]], seen: Observed, outcome: Outcome
) -> None:
    for (kind, name), error in seen.unread.items():
        if (kind, name) not in names:
            outcome.failed(f"{kind.name} {name}", error, optional=True)
    for (kind, name), live in seen.children.items():
        if (kind, name) not in names and is_ours(live, service.uid) and "deletionTimestamp" not in live["metadata"]:
            try:
                await api.delete(kind, live)
                log.info("deleted", extra={"kind": kind.name, "object": name, "service": str(service.ref)})
            except ApiError as error:
                outcome.failed(f"to delete {kind.name} {name}", error, optional=True)


async def apply_rollout(
    api: Api, service: InferenceService, rollout: Rollout, build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Forget, stop and start pods. A name that is taken is looked at. One that fails stops no other."""
    for pod in (*rollout.forget, *rollout.stop):
        if await _try(outcome, f"to delete Pod {pod.name}", api.delete(POD, pod.body)):
            log.info("pod deleted", extra={"pod": pod.name, "service": str(service.ref)})
    for attempt in rollout.start:
        body = build(attempt)
        await _try(outcome, f"Pod {body['metadata']['name']}", _create(api, service, body, outcome))


async def heal_pods(
    api: Api, pods: Sequence[Pod], build: Callable[[Attempt], dict[str, Any]], outcome: Outcome
) -> None:
    """Give back labels and owner that somebody changed. One that fails stops no other."""
    for pod in pods:
        await _heal(api, pod, build(Attempt(pod.replica, pod.attempt, pod.failures)), outcome)


async def _heal(api: Api, pod: Pod, want: dict[str, Any], outcome: Outcome) -> None:
    patch = metadata_patch(pod, want)
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
        await _meet(api, service, body, outcome)


async def _meet(api: Api, service: InferenceService, body: dict[str, Any], outcome: Outcome) -> None:
    """The name is taken: by ours that lost its labels, by a stranger, or by nobody any more."""
    live = await api.get(POD, service.ref.namespace, body["metadata"]["name"])
    if live is None:
        raise ApiError(f"create Pod {body['metadata']['name']}", 409, "its name was taken a moment ago")
    if not is_ours(live, service.uid):
        outcome.conflicts.append(conflict(live))
    else:
        await _heal(api, Pod.from_api(live), body, outcome)


async def _try(outcome: Outcome, what: str, write: Awaitable[Any]) -> bool:
    """Whether it was written."""
    try:
        await write
    except ApiError as error:
        outcome.failed(what, error)
        return False
    return True
