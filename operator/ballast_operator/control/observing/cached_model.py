"""Finds the cached model of a service, and the nodes that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ballast_operator.api.inference_service import InferenceService, SpecError
from ballast_operator.api.model_cache import ModelCache
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import MODEL_CACHE
from ballast_operator.control.reporting.cached_findings import find_cached
from ballast_operator.control.reporting.conditions import READY, Finding
from ballast_operator.limits.allowed import AllowLists
from ballast_operator.limits.refusals import why_cache_not_allowed
from ballast_operator.resources.pulling.cache_job import found_model


async def with_cached_model(
    api: Api, service: InferenceService, allowed: AllowLists
) -> tuple[InferenceService, Finding | None]:
    """The service with the model that its ModelCache has, and the finding about it; None for other sources. While the
    finding does not hold, the service is without."""
    source = service.spec.model.source.cache
    if source is None:
        return service, None
    try:
        body = await api.get(MODEL_CACHE, service.ref.namespace, source.name)
    except ApiError as error:
        return service, Finding(
            "Unknown", "NotLookedAt", f"ModelCache {source.name} could not be read: {error.message}"
        )
    if body is None:
        return service, Finding("False", "CacheMissing", f"ModelCache {source.name} does not exist: create it")
    try:
        cache = ModelCache.from_api(body)
    except SpecError as error:
        return service, Finding("False", "CacheMissing", f"ModelCache {source.name} cannot be read: {error}")
    if (refusal := why_cache_not_allowed(cache.spec, allowed)) is not None:
        return service, Finding(
            "False", "CacheMissing", f"the operator does not act on ModelCache {source.name}: {refusal}"
        )
    status = body.get("status") or {}
    places = _places_with(status, source.model)
    there = [name for name, state, _ in places if state == "Present"]
    ready: Mapping[str, Any] = next((found for found in status.get("conditions") or () if found["type"] == READY), {})
    finding = find_cached(source, cache, places, ready)
    model = cache.model(source.model)
    if model is None or not finding.holds:
        return service, finding
    return replace(service, cached=found_model(cache, model, tuple(there))), finding


def _places_with(status: Mapping[str, Any], model: str) -> list[tuple[str, str, str]]:
    return [
        (place["name"], entry["state"], entry.get("message", ""))
        for place in status.get("places") or ()
        for entry in place.get("models") or ()
        if entry["name"] == model
    ]
