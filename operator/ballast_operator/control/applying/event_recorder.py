"""Writes Kubernetes events about an InferenceService: one object per reason, whose count grows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ballast_operator.cluster.api import Api, ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import EVENT
from ballast_operator.control.reporting.conditions import timestamp
from ballast_operator.control.reporting.events import Event
from ballast_operator.names import FIELD_MANAGER
from ballast_operator.spec_hash import short_hash

log = logging.getLogger(__name__)


async def record(api: Api, service: Mapping[str, Any], events: Sequence[Event], now: datetime) -> None:
    """Write the events. An event that cannot be written is only logged, because the status has the same content. In a
    namespace that is being deleted, none can be written."""
    for event in events:
        try:
            await _record_one(api, service, event, timestamp(now))
        except NamespaceEndsError:
            return
        except ApiError as error:
            log.warning("an event could not be written", extra={"reason": event.reason, "error": str(error)})


async def _record_one(api: Api, service: Mapping[str, Any], event: Event, stamp: str) -> None:
    metadata = service["metadata"]
    # The name is derived from the reason, so that a restarted operator continues to count.
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
