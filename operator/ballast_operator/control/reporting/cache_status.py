"""Builds the status of a ModelCache. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.api.model_cache_status import (
    MAX_ENTRIES,
    MAX_PLACES,
    MAX_SENTENCE,
    ModelCacheStatus,
    Place,
    PlacedModel,
)
from ballast_operator.control.reporting.cache_copies import CopyReport, PlaceReport
from ballast_operator.control.reporting.conditions import READY, Finding, merge, timestamp
from ballast_operator.quantity import canonical_bytes


def build_cache_status(
    cache: ModelCache, places: Sequence[PlaceReport], before: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The status now. `before`: the one in the object, for times."""
    known = last_used(before)
    wanted = [copy for place in places for copy in place.copies if copy.wanted]
    status = ModelCacheStatus(
        observed_generation=cache.generation,
        present=f"{sum(copy.state == 'Present' for copy in wanted)}/{len(wanted)}",
        places=[_place(place, known, now) for place in places[:MAX_PLACES]] or None,
        conditions=merge({READY: _ready(cache, places)}, before.get("conditions") or [], cache.generation, now),
    )
    return status.to_api()


def refused_cache_status(
    reason: str, message: str, generation: int, before: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The status for a spec that the operator does not act on. Existing models stay."""
    conditions = merge({READY: Finding("False", reason, message)}, before.get("conditions") or [], generation, now)
    current = {"observedGeneration": generation, "conditions": [found.to_api() for found in conditions]}
    return {**before, **current}


def last_used(status: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The time of last use of each unused model, by place and name."""
    return {key: str(model["lastUsed"]) for key, model in entries(status).items() if model.get("lastUsed") is not None}


def entries(status: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The models in a status, by place and name."""
    return {
        (place["name"], model["name"]): model
        for place in status.get("places") or ()
        for model in place.get("models") or ()
    }


def _place(place: PlaceReport, known: Mapping[tuple[str, str], str], now: datetime) -> Place:
    # A model that the spec lists comes last: its entry replaces that of an earlier model of its name.
    by_name = {copy.model: copy for copy in sorted(place.copies, key=lambda copy: copy.wanted)}
    return Place(
        name=place.name,
        used=canonical_bytes(str(place.used_bytes)),
        models=[
            PlacedModel(
                name=name,
                state=copy.state,
                in_use=copy.in_use,
                last_used=_last_used(copy, known.get((place.name, name)), now),
                message=copy.message[:MAX_SENTENCE],
            )
            for name, copy in list(by_name.items())[:MAX_ENTRIES]
        ],
    )


def _last_used(copy: CopyReport, before: str | None, now: datetime) -> str | None:
    if copy.in_use or copy.state not in ("Present", "Removing"):
        return None
    return before or timestamp(now)


def _ready(cache: ModelCache, places: Sequence[PlaceReport]) -> Finding:
    if cache.deleting:
        return Finding("False", "Terminating", _why_not_gone(places))
    if not places:
        claim = cache.spec.storage.pvc
        if claim is not None:
            message = f"PersistentVolumeClaim {claim.claim_name} does not exist or is being deleted: create it"
            return Finding("False", "ClaimMissing", message)
        return Finding("False", "NoNodes", "no node has the labels of nodeSelector and only tolerated taints")
    for place, copy in _in_order(places):
        if copy.wanted and copy.state == "Failed":
            return Finding("False", copy.reason, f"{copy.model} on {place.name}: {copy.message}")
    for place, copy in _in_order(places):
        if copy.lacks_room:
            message = f"{copy.model} on {place.name}, used by {', '.join(copy.users)}: {copy.message}"
            return Finding("False", "NoRoom", message)
    filling = [copy.model for _, copy in _in_order(places) if copy.wanted and copy.state in ("Pulling", "Waiting")]
    if filling:
        return Finding("False", "Filling", f"{', '.join(sorted(set(filling)))}: being downloaded")
    left_out = sorted({copy.model for _, copy in _in_order(places) if copy.wanted and copy.state != "Present"})
    if left_out:
        return Finding("True", "Full", f"{', '.join(left_out)}: no room, and no service uses it")
    return Finding("True", "Filled", "every model is present in every place")


def _why_not_gone(places: Sequence[PlaceReport]) -> str:
    users = sorted({user for _, copy in _in_order(places) for user in copy.users})
    if users:
        return f"services {', '.join(users)} use its models: it is removed when they are deleted or changed"
    held = sorted({place.name for place, copy in _in_order(places)})
    return f"models are removed from {', '.join(held)}" if held else "all its models are removed"


def _in_order(places: Sequence[PlaceReport]) -> list[tuple[PlaceReport, CopyReport]]:
    return [(place, copy) for place in places for copy in place.copies]
