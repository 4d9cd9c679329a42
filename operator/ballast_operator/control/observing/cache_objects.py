"""Reads the objects of a ModelCache and its users."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import CLAIM, INFERENCE_SERVICE, JOB, NETWORK_POLICY, NODE, POD
from ballast_operator.control.deciding.cache_copies import Copy, copies_of, mounted_folders, named_folders
from ballast_operator.control.deciding.cache_places import places_of
from ballast_operator.names import LABEL_CACHE, MANAGED_SELECTOR

Policy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CacheObjects:
    """The objects of a ModelCache in the cluster."""

    policy: Policy | None
    copies: Mapping[tuple[str, str], Copy]
    """By place and folder."""
    places: tuple[str, ...]
    """The nodes that are to keep the models, or the claim; empty while the claim does not exist."""
    reachable: frozenset[str]
    """Places that exist, whether they are to keep the models or not."""
    named: Mapping[str, list[str]]
    """Folders that services name, with the services."""
    mounted: Mapping[str, set[str]]
    """Folders that pods mount, with their nodes."""

    def mounted_in(self, place: str, *, of_nodes: bool) -> set[str]:
        """The folders that pods in this place mount. Those of a claim may run on any node (`of_nodes` false)."""
        return {folder for folder, nodes in self.mounted.items() if not of_nodes or place in nodes}


async def observe_cache(api: Api, cache: ModelCache, policy: Policy) -> CacheObjects:
    """Read the objects. Raises ApiError."""
    namespace, selector = cache.ref.namespace, f"{LABEL_CACHE}={cache.ref.name}"
    live, jobs, pods, services, engines, (places, reachable) = await asyncio.gather(
        api.get(NETWORK_POLICY, namespace, policy["metadata"]["name"]),
        api.list_all(JOB, namespace, selector),
        api.list_all(POD, namespace, selector),
        api.list_all(INFERENCE_SERVICE, namespace),
        api.list_all(POD, namespace, MANAGED_SELECTOR),
        _places(api, cache),
    )
    return CacheObjects(
        policy=live,
        copies=copies_of(cache, jobs or (), pods or ()),
        places=tuple(places),
        reachable=frozenset(reachable),
        named=named_folders(cache, services or ()),
        mounted=mounted_folders(cache, engines or ()),
    )


async def _places(api: Api, cache: ModelCache) -> tuple[list[str], list[str]]:
    """The places to fill, and all that exist."""
    claim = cache.spec.storage.pvc
    if claim is None:
        nodes = await api.list_all(NODE) or []
        return places_of(cache.spec, nodes), [node["metadata"]["name"] for node in nodes]
    live = await api.get(CLAIM, cache.ref.namespace, claim.claim_name)
    there = [] if live is None or "deletionTimestamp" in live["metadata"] else [claim.claim_name]
    return there, there
