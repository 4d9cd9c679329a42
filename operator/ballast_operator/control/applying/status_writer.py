"""Writes the statuses of InferenceServices and ModelCaches, and the events that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import Kind
from ballast_operator.control.applying.event_recorder import record
from ballast_operator.control.reporting.events import events_between
from ballast_operator.control.state import OperatorState


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes under the field manager of one install. Every method raises ApiError."""

    api: Api
    state: OperatorState
    manager: str
    now: Callable[[], datetime]

    async def write(
        self, kind: Kind, body: Mapping[str, Any], status: Mapping[str, Any], gone: Sequence[str] = ()
    ) -> str:
        """Write the status and its events if it differs from that of `body`. Returns the object's resource version.

        `gone`: managers of installs that are no more. Their fields become ours or are removed.
        """
        declared = self.state.declared_status(kind, status)
        if not gone and _without_order(declared) == _without_order(body.get("status") or {}):
            return str(body["metadata"]["resourceVersion"])
        written = await self._apply(kind, body, declared)
        for manager in gone:  # a manager that applies no field owns none, and fields without an owner are removed
            written = await self.api.apply(kind, _head(body, "name", "namespace", "uid"), "status", manager)
        return str(written["metadata"]["resourceVersion"])

    async def apply(self, kind: Kind, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write these fields of the status, and the events."""
        await self._apply(kind, body, self.state.declared_status(kind, status))

    async def _apply(self, kind: Kind, body: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
        """Write fields that the installed definition declares, and the events. Returns the object."""
        # With the resource version, the API server refuses a status that was made from an older object.
        head = _head(body, "name", "namespace", "uid", "resourceVersion")
        written = await self.api.apply(kind, {**head, "status": declared}, "status", self.manager)
        events = events_between(_conditions(body.get("status")), _conditions(declared))
        await record(self.api, written, events, self.now())
        return written


def _head(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The object's kind, and these fields of its metadata."""
    kind = {key: body[key] for key in ("apiVersion", "kind")}
    return {**kind, "metadata": {name: body["metadata"][name] for name in names}}


def _without_order(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status with its conditions by type: if several managers wrote some, the API server keeps another order."""
    return {**status, "conditions": {found["type"]: found for found in _conditions(status)}}


def _conditions(status: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return (status or {}).get("conditions") or ()
