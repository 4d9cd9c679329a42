"""Kubernetes events for what a user wants to hear of: one an object and reason, counted when it comes again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import EVENT
from ballast_operator.control.conditions import NUMA_PINNED, READY, timestamp
from ballast_operator.names import FIELD_MANAGER
from ballast_operator.spec_hash import short_hash

log = logging.getLogger(__name__)

TOLD = (READY, NUMA_PINNED)
"""Conditions whose changes are events."""

ON_THE_WAY = frozenset(
    (
        *("PodMissing", "WaitingForScheduler", "ContainerCreating", "NotAnswering", "Loading", "NotReady"),
        *("PodsNotReady", "ServiceUnreachable", "ScaledToZero", "NotRunning", "NotProbed", "NotLookedAt"),
    )
)
"""Reasons that come with every start, change and stop: news only to those whom the service was there for."""

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a service."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


def events_between(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Event]:
    """What to tell of the step from these conditions to those. Pure.

    That a condition became true, that Ready no longer is, and every new reason for trouble; not the stations on the
    way.
    """
    known = {condition["type"]: condition for condition in before}
    found: dict[str, Event] = {}
    for condition in after:
        if condition["type"] in TOLD and (event := _event(known.get(condition["type"]), condition)) is not None:
            found.setdefault(event.reason, event)  # Ready repeats the reason of the condition that it lacks
    return list(found.values())


def _event(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Event | None:
    status, reason = after["status"], after["reason"]
    was = (None, None) if before is None else (before["status"], before["reason"])
    if was == (status, reason):
        return None
    trouble = status != "True" and reason not in ON_THE_WAY
    lost = after["type"] == READY and was[0] == "True"
    if not (trouble or lost or status == "True"):
        return None
    return Event("Warning" if trouble else "Normal", reason, after.get("message", "")[:MAX_MESSAGE])


async def record(api: Api, service: Mapping[str, Any], events: Sequence[Event], now: datetime) -> None:
    """Write them beside the InferenceService. One that cannot be written is only logged: the status says it all."""
    for event in events:
        try:
            await _record_one(api, service, event, timestamp(now))
        except ApiError as error:
            log.warning("an event could not be written", extra={"reason": event.reason, "error": str(error)})


async def _record_one(api: Api, service: Mapping[str, Any], event: Event, stamp: str) -> None:
    metadata = service["metadata"]
    # A name for each reason, so that an operator that was restarted counts on.
    name = f"{metadata['name']}.{short_hash([metadata['uid'], event.kind, event.reason])}"
    live = await api.get(EVENT, metadata["namespace"], name)
    if live is not None:
        again = {"count": live.get("count", 1) + 1, "lastTimestamp": stamp, "message": event.message}
        await api.merge(EVENT, metadata["namespace"], name, again)
        return
    regarding = {key: service[key] for key in ("apiVersion", "kind")}
    regarding |= {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    body = {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": regarding,
        "type": event.kind,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": FIELD_MANAGER},
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
    }
    await api.create(EVENT, body, metadata["namespace"])
