"""Brings nodes and claims to what one ModelCache asks for. A pass may run at any time, any number of times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import SpecError
from ballast_operator.api.model_cache import ModelCache
from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import Api, NamespaceEndsError
from ballast_operator.cluster.kinds import MODEL_CACHE
from ballast_operator.control.applying.cache_jobs import (
    begin_pull,
    forget,
    remove_finished_pods,
    renew_pull,
    step_removal,
)
from ballast_operator.control.applying.finalizer import set_finalizer
from ballast_operator.control.applying.pull_objects import apply_policy
from ballast_operator.control.applying.status_writer import StatusWriter
from ballast_operator.control.deciding.cache_copies import Copy
from ballast_operator.control.deciding.cache_plan import Held, PlacePlan, Wanted, plan_place
from ballast_operator.control.deciding.pull import next_look_s
from ballast_operator.control.observing.cache_objects import CacheObjects, observe_cache
from ballast_operator.control.observing.installs import Installs
from ballast_operator.control.observing.probe import Prober
from ballast_operator.control.observing.pull_objects import with_progress
from ballast_operator.control.reporting.cache_copies import CopyReport, PlaceReport, report_absent, report_copy
from ballast_operator.control.reporting.cache_status import (
    build_cache_status,
    entries,
    last_used,
    refused_cache_status,
)
from ballast_operator.limits.refusals import why_cache_not_allowed
from ballast_operator.names import Ref
from ballast_operator.quantity import parse_bytes
from ballast_operator.resources.pulling.cache_job import build_cache_policy, folder_of

WAITS_S = 10.0
"""Seconds until the next pass over a cache that its users or the API server hold up."""
AT_ONCE = 8
"""Places that are worked on at the same time: one whose pod does not answer holds up no other."""
BUSY = ("Pulling", "Waiting", "Removing")


@dataclass(slots=True)
class CacheReconciler:
    """Runs passes over ModelCaches."""

    api: Api
    prober: Prober
    options: ChildOptions
    installs: Installs
    statuses: StatusWriter
    now: Callable[[], datetime]
    clock: Callable[[], float]
    _busy_since: dict[Ref, float] = field(default_factory=dict)

    async def reconcile(self, ref: Ref) -> float | None:
        """Run one pass. Returns the seconds until the next is due; None: with the next resync. Raises ApiError."""
        body = await self.api.get(MODEL_CACHE, ref.namespace, ref.name)
        if body is None:
            self._busy_since.pop(ref, None)
            return None
        try:
            return await self._reconcile_existing(ref, body)
        except NamespaceEndsError:
            return WAITS_S  # its Jobs end with the namespace, and then the finalizer is taken away

    async def _reconcile_existing(self, ref: Ref, body: dict[str, Any]) -> float | None:
        rivalry = await self.installs.look(body)
        if not rivalry.acts:
            return WAITS_S
        before, generation = body.get("status") or {}, body["metadata"]["generation"]

        async def write(status: dict[str, Any]) -> None:
            await self.statuses.write(MODEL_CACHE, body, status, rivalry.gone)

        try:
            cache = ModelCache.from_api(body)
        except SpecError as error:
            await write(refused_cache_status("SpecInvalid", str(error), generation, before, self.now()))
            return None
        refusal = None if cache.deleting else why_cache_not_allowed(cache.spec, self.options.allowed)
        if refusal is not None:
            await write(refused_cache_status("NotAllowed", refusal, generation, before, self.now()))
            return None
        if not cache.deleting and await set_finalizer(self.api, body, wanted=True):
            return 0.0
        policy = build_cache_policy(cache, self.options)
        seen = await observe_cache(self.api, cache, policy)
        if not cache.deleting:
            await apply_policy(self.api, policy, seen.policy)
        places = sorted({*seen.places, *(place for place, _ in seen.copies)})
        at_once = asyncio.Semaphore(AT_ONCE)

        async def fill(place: str) -> PlaceReport | None:
            async with at_once:
                return await self._fill(cache, seen, place, before)

        reports = [report for report in await asyncio.gather(*map(fill, places)) if report is not None]
        if cache.deleting and not reports:
            await set_finalizer(self.api, body, wanted=False)
            return None
        await write(build_cache_status(cache, reports, before, self.now()))
        return self._next_look(ref, cache, reports)

    async def _fill(
        self, cache: ModelCache, seen: CacheObjects, place: str, before: Mapping[str, Any]
    ) -> PlaceReport | None:
        """Take the next step in one place, and report what is there; None for nothing."""
        copies = {folder: copy for (found, folder), copy in seen.copies.items() if found == place}
        if place not in seen.reachable:
            for copy in copies.values():
                await forget(self.api, copy)
            return None
        meant = place in seen.places and not cache.deleting
        models = {folder_of(cache, model): model for model in cache.spec.models}
        sizes = {folder: copy.size for folder, copy in copies.items()}
        sizes |= {folder: model.size for folder, model in models.items()}
        mounted = seen.mounted_in(place, of_nodes=cache.spec.storage.host_path is not None)
        used = last_used(before)
        plan = plan_place(
            parse_bytes(cache.spec.capacity),
            [Wanted(folder, parse_bytes(model.size)) for folder, model in models.items()] if meant else [],
            {
                folder: Held(
                    parse_bytes(sizes[folder]),
                    used.get((place, copy.model), ""),
                    fails=copy.fails,
                    leaving=copy.leaving,
                )
                for folder, copy in copies.items()
            },
            seen.named,
            {*mounted, *seen.named} if cache.deleting else mounted,
        )
        refusals = await self._step(cache, place, plan, copies, before)
        reports = []
        for folder in dict.fromkeys((*copies, *(models if meant else ()))):
            here = copies.get(folder)
            name = here.model if here is not None else models[folder].name
            users = tuple(seen.named.get(folder, ()))
            found = CopyReport(name, folder, meant and folder in models, users, folder in mounted)
            if here is None:
                reports.append(report_absent(found, plan, refusals.get(folder)))
            else:
                reports.append(report_copy(found, here, plan, await with_progress(self.prober, here.pull)))
        if not reports and not meant:
            return None
        return PlaceReport(place, sum(parse_bytes(sizes[folder]) for folder in copies), reports)

    async def _step(
        self, cache: ModelCache, place: str, plan: PlacePlan, copies: Mapping[str, Copy], before: Mapping[str, Any]
    ) -> dict[str, str]:
        """Write Jobs. Returns why pods of pulls are refused, by folder."""
        listed = {folder_of(cache, model): model.name for model in cache.spec.models}
        announced = {key for key, entry in entries(before).items() if entry.get("state") == "Removing"}
        for folder, copy in copies.items():
            if copy.leaving:
                await step_removal(self.api, cache, copy, self.options)
            elif folder in plan.remove:
                # The status says it first, and services are listed once more: one may just have found the model there.
                if folder not in listed or (place, copy.model) in announced:
                    await step_removal(self.api, cache, copy, self.options)
            else:
                await renew_pull(self.api, cache, copy, self.options)
                await remove_finished_pods(self.api, copy)
        refusals = {}
        for folder in plan.pull:
            if (refusal := await begin_pull(self.api, cache, listed[folder], place, self.options)) is not None:
                refusals[folder] = refusal
        return refusals

    def _next_look(self, ref: Ref, cache: ModelCache, places: list[PlaceReport]) -> float | None:
        copies = [copy for place in places for copy in place.copies]
        if any(copy.state in BUSY for copy in copies):
            now = self.clock()
            return next_look_s(now - self._busy_since.setdefault(ref, now))
        self._busy_since.pop(ref, None)
        waits = cache.deleting or any(copy.state == "Failed" or copy.lacks_room for copy in copies)
        return WAITS_S if waits else None
