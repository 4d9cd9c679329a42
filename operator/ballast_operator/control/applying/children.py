"""Writes the children other than pods: applies the desired ones and deletes the others."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import Kind, kind_of
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.control.deciding.drift import has_drifted, removal_patch, stamped
from ballast_operator.control.deciding.ownership import conflict, is_ours, waits_for_finalizers
from ballast_operator.control.observing.observe import Observed

log = logging.getLogger(__name__)


async def apply_children(
    api: Api, service: InferenceService, desired: Sequence[dict[str, Any]], seen: Observed, outcome: Outcome
) -> None:
    """Apply missing or changed children, and delete ours that are not desired. A failure does not stop the rest."""
    names = set()
    for child in map(stamped, desired):
        kind, name = kind_of(child), child["metadata"]["name"]
        names.add((kind, name))
        live = seen.children.get((kind, name))
        if (unread := seen.unread.get((kind, name))) is not None:
            outcome.child_failed(kind, name, unread)
        elif live is not None and not is_ours(live, service):
            outcome.conflicts.append(conflict(live, service))
        elif live is not None and "deletionTimestamp" in live["metadata"]:
            outcome.delays.append(waits_for_finalizers(live))
        elif live is None or has_drifted(child, live):
            try:
                await _apply_child(api, kind, child, live)
                log.info("applied", extra={"kind": kind.name, "object": name, "service": str(service.ref)})
            except ApiError as error:
                outcome.child_failed(kind, name, error)
    await _delete_unwanted(api, service, names, seen, outcome)


async def _apply_child(api: Api, kind: Kind, child: dict[str, Any], live: Mapping[str, Any] | None) -> None:
    """Create the child, or make the live object equal to it. Raises ApiError."""
    if live is None:
        await api.apply(kind, child)
        return
    # With the uid, the API server refuses to overwrite another object that took the name meanwhile.
    uid, metadata = {"uid": live["metadata"]["uid"]}, child["metadata"]
    if (patch := removal_patch(child, live)) is not None:
        head = {**patch.get("metadata", {}), **uid}
        await api.merge(kind, metadata["namespace"], metadata["name"], {**patch, "metadata": head})
    await api.apply(kind, {**child, "metadata": {**metadata, **uid}})


async def _delete_unwanted(
    api: Api, service: InferenceService, names: Container[tuple[Kind, str]], seen: Observed, outcome: Outcome
) -> None:
    for (kind, name), error in seen.unread.items():
        if (kind, name) not in names:
            outcome.failed(f"{kind.name} {name}", error, optional=True)
    for (kind, name), live in seen.children.items():
        if (kind, name) not in names and is_ours(live, service) and "deletionTimestamp" not in live["metadata"]:
            try:
                await api.delete(kind, live)
                log.info("deleted", extra={"kind": kind.name, "object": name, "service": str(service.ref)})
            except ApiError as error:
                outcome.failed(f"to delete {kind.name} {name}", error, optional=True)
