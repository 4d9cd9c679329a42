"""Writes the status of a ModelCache, its events, and its finalizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import MODEL_CACHE
from ballast_operator.control.applying.event_recorder import record
from ballast_operator.control.reporting.events import events_between
from ballast_operator.names import FINALIZER_CACHE


async def write_cache_status(
    api: Api, body: Mapping[str, Any], status: Mapping[str, Any], manager: str, gone: Sequence[str], now: datetime
) -> None:
    """Write the status if it differs. `gone`: managers of installs that are no more, whose fields go."""
    before = body.get("status") or {}
    if status == before and not gone:
        return
    metadata = body["metadata"]
    head = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    named = {key: metadata[key] for key in ("name", "namespace", "uid")}
    dated = {**named, "resourceVersion": metadata["resourceVersion"]}
    written = await api.apply(MODEL_CACHE, {**head, "metadata": dated, "status": status}, "status", manager)
    for other in gone:
        await api.apply(MODEL_CACHE, {**head, "metadata": named}, "status", other)
    await record(api, written, events_between(before.get("conditions") or [], status["conditions"]), now)


async def set_finalizer(api: Api, body: Mapping[str, Any], *, wanted: bool) -> bool:
    """Add or remove the finalizer. Returns whether the object changed, so that `body` is out of date."""
    metadata = body["metadata"]
    have = list(metadata.get("finalizers") or ())
    if (FINALIZER_CACHE in have) == wanted:
        return False
    finalizers = [*have, FINALIZER_CACHE] if wanted else [name for name in have if name != FINALIZER_CACHE]
    changed = {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
    await api.merge(MODEL_CACHE, metadata["namespace"], metadata["name"], {"metadata": changed})
    return True
