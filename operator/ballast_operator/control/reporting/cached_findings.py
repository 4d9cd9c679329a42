"""The condition ModelPulled of a service with a model of a ModelCache. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.api.sources.cached_source import CachedSource
from ballast_operator.control.reporting.conditions import Finding

HAS_NO_PLACE = ("NoNodes", "ClaimMissing")
"""Reasons of a cache without a place, so that it downloads nothing."""


def find_cached(
    source: CachedSource, cache: ModelCache, places: Sequence[tuple[str, str, str]], ready: Mapping[str, Any]
) -> Finding:
    """The finding. `places`: name, state and message of each place for which the cache reports the model. `ready`: the
    cache's condition; empty without one."""
    where = f"ModelCache {source.name}"
    model = cache.model(source.model)
    if model is None:
        listed = ", ".join(found.name for found in cache.spec.models) or "none"
        return Finding("False", "NotCached", f"{where} has no model {source.model}; its models: {listed}")
    if cache.deleting:
        return Finding("False", "CacheMissing", f"{where} is being deleted: use another source")
    if there := [name for name, state, _ in places if state == "Present"]:
        return Finding("True", "Pulled", f"{model.source.model.name}: in {where} on {', '.join(there)}")
    for reason, states in (("CacheFailed", ("Failed",)), ("CacheFull", ("NoRoom",))):
        for name, state, message in places:
            if state in states:
                return Finding("False", reason, f"{where}, {source.model} on {name}: {message}")
    if not places and ready.get("reason") in HAS_NO_PLACE:
        return Finding("False", "CacheFailed", f"{where}: {ready['reason']}: {ready.get('message', '')}")
    return Finding("False", "CacheFilling", f"{where}: {source.model} is on no node yet")
