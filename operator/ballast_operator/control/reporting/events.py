"""Selects the changes of conditions that become Kubernetes events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ballast_operator.control.reporting.conditions import MODEL_PULLED, NUMA_PINNED, READY, SOLE_OPERATOR, TRANSIENT

REPORTED = (READY, MODEL_PULLED, NUMA_PINNED, SOLE_OPERATOR)
"""Conditions whose changes are events."""

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about a service."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


def events_between(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Event]:
    """The events for a change of the conditions from `before` to `after`.

    There is one event when a condition becomes true, when Ready is lost, and for each new fault, but none for the steps
    of a normal start or stop.
    """
    known = {condition["type"]: condition for condition in before}
    found: dict[str, Event] = {}
    for condition in after:
        if condition["type"] in REPORTED and (event := _event(known.get(condition["type"]), condition)) is not None:
            found.setdefault(event.reason, event)  # Ready repeats the reason of the condition that fails
    return list(found.values())


def _event(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Event | None:
    status, reason = after["status"], after["reason"]
    was = (None, None) if before is None else (before["status"], before["reason"])
    if was == (status, reason):
        return None
    trouble = status != "True" and reason not in TRANSIENT
    lost = after["type"] == READY and was[0] == "True"
    if not (trouble or lost or status == "True"):
        return None
    return Event("Warning" if trouble else "Normal", reason, after.get("message", "")[:MAX_MESSAGE])
