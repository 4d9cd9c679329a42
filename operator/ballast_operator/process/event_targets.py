"""Which services and ModelCaches an event concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.cluster.kinds import INFERENCE_SERVICE, MODEL_CACHE, Kind
from ballast_operator.control.deciding.ownership import controller_of, is_service
from ballast_operator.control.resync import ref_of
from ballast_operator.names import LABEL_SERVICE, Ref, labels_of


def service_of(kind: Kind, body: Mapping[str, Any]) -> Ref | None:
    """The service that an object is or belongs to. The owner decides if the label was removed."""
    if kind == INFERENCE_SERVICE:
        return ref_of(body)
    name = labels_of(body).get(LABEL_SERVICE)
    if name is None:
        owner = controller_of(body)
        name = owner["name"] if owner is not None and is_service(owner) else None
    return None if name is None else Ref(body["metadata"]["namespace"], name)


class CacheUsers:
    """The cached model that each service names, by which events of services concern ModelCaches."""

    def __init__(self) -> None:
        self._named: dict[Ref, tuple[str, str]] = {}

    def clear(self) -> None:
        """Forget all services, before the watches start."""
        self._named.clear()

    def caches_of(self, kind: Kind, body: Mapping[str, Any], *, gone: bool) -> Iterable[Ref]:
        """The cache that an object is, or the caches whose use changes by an event of a service."""
        if kind == MODEL_CACHE:
            return (ref_of(body),)
        if kind != INFERENCE_SERVICE:
            return ()
        ref, now = ref_of(body), None if gone else _named_model(body)
        before = self._named.pop(ref, None)
        if now is not None:
            self._named[ref] = now
        if now == before:
            return ()
        return {Ref(ref.namespace, cache) for cache, _ in filter(None, (before, now))}


def _named_model(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Cache and model of a service's source; None for other sources, and for a service that is being deleted."""
    source = ((body.get("spec") or {}).get("model") or {}).get("source") or {}
    named = source.get("cache") or {}
    if "name" not in named or "deletionTimestamp" in body["metadata"]:
        return None
    return named["name"], named.get("model", "")
