"""Writes the Jobs of a ModelCache: starts pulls and removals, and deletes completed ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import JOB, POD
from ballast_operator.control.applying.outcome import REFUSED
from ballast_operator.control.applying.pull_objects import create_job, delete_job
from ballast_operator.control.deciding.cache_copies import TERMINAL_PHASES, Copy
from ballast_operator.control.deciding.pull import is_outdated
from ballast_operator.resources.pulling.cache_job import build_cache_pull, build_removal

log = logging.getLogger(__name__)


async def begin_pull(api: Api, cache: ModelCache, model_name: str, place: str, options: ChildOptions) -> str | None:
    """Create the Job. Returns why the API server would reject its pod; None if it would not. Raises ApiError."""
    model = cache.model(model_name)
    assert model is not None
    job = build_cache_pull(cache, model, place, options)
    if (refusal := await _why_refused(api, cache, job)) is None:
        await create_job(api, job)
        log.info("pull begun", extra={"cache": str(cache.ref), "model": model_name, "place": place})
    return refusal


async def renew_pull(api: Api, cache: ModelCache, copy: Copy, options: ChildOptions) -> None:
    """Delete a failing Job that would be created in another way now; the next pass creates it again."""
    model = cache.model(copy.model)
    if model is None or copy.job is None or copy.leaving:
        return
    if is_outdated(copy.job, build_cache_pull(cache, model, copy.place, options), copy.pull):
        await delete_job(api, copy.job)
        log.info("pull Job replaced", extra={"cache": str(cache.ref), "model": copy.model, "place": copy.place})


async def step_removal(api: Api, cache: ModelCache, copy: Copy, options: ChildOptions) -> None:
    """Take the next step of a removal: stop the pull, start the removing Job, and delete both when it is done.

    The pull's Job goes last but one, so that an operator that ends here knows that the model is there.
    """
    if copy.removal is not None:
        if copy.removed.done:
            await forget(api, copy)
            log.info("removed", extra={"cache": str(cache.ref), "model": copy.model, "place": copy.place})
        return
    if copy.job is not None and not copy.pull.done:
        if not (copy.job.get("spec") or {}).get("suspend"):
            await api.merge(JOB, cache.ref.namespace, copy.job["metadata"]["name"], {"spec": {"suspend": True}})
        if any((pod.get("status") or {}).get("phase") not in TERMINAL_PHASES for pod in copy.pods):
            return  # it may still write
    job = build_removal(cache, copy.place, copy.folder, copy.model, copy.size, options)
    await create_job(api, job)
    log.info("removal begun", extra={"cache": str(cache.ref), "model": copy.model, "place": copy.place})


async def forget(api: Api, copy: Copy) -> None:
    """Delete the Jobs of a copy."""
    for job in (copy.job, copy.removal):
        if job is not None:
            await delete_job(api, job)


async def remove_finished_pods(api: Api, copy: Copy) -> None:
    """Delete the pods of a pull that is done: a claim cannot be deleted while one exists."""
    if copy.present:
        for pod in copy.pods:
            await api.delete(POD, pod)


async def _why_refused(api: Api, cache: ModelCache, job: Mapping[str, Any]) -> str | None:
    """A Job whose pods are rejected reports it only in an event."""
    template = job["spec"]["template"]
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": job["metadata"]["name"]}
    try:
        await api.try_create(POD, pod, cache.ref.namespace)
    except ApiError as error:
        if error.status not in REFUSED:
            raise
        return error.message
    return None
