"""Writes the finalizer of a ModelCache, which stays until the cached files are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import MODEL_CACHE
from ballast_operator.names import FINALIZER_CACHE


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
