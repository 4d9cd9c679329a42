"""Creates the Job that downloads the model of a service, and its policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import JOB, NETWORK_POLICY, POD
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.control.applying.pull_objects import apply_policy, create_job, delete_job
from ballast_operator.control.deciding.pull import Pull, Trouble, is_ours, is_outdated, judge, owners
from ballast_operator.control.observing.probe import Prober
from ballast_operator.control.observing.pull_objects import PullObjects, observe_pull, with_progress
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.reporting.pull_findings import find_pull
from ballast_operator.resources.pulling.pull_job import (
    ANNOTATION_PULLED,
    build_pull_job,
    build_pull_policy,
    owner_claim,
    owner_service,
    pull_name,
)

log = logging.getLogger(__name__)


async def pull_model(
    api: Api, prober: Prober, service: InferenceService, options: ChildOptions, outcome: Outcome
) -> Finding | None:
    """Create the download and determine its state; None if the model needs no download. Until it is done, no pod is
    started or stopped: pods of an earlier spec keep running."""
    source = service.spec.model.source.pulled
    if source is None:
        return None
    name = pull_name(service.spec, source)
    try:
        seen = await observe_pull(api, service, source)
        pull = await _advance(api, service, source, options, seen, outcome)
    except ApiError as error:
        outcome.failed(f"Job {name}", error)
        outcome.holds_pods = True
        return Finding("Unknown", "NotLookedAt", f"Job {name} could not be read or created: {error.message}")
    found = find_pull(source, name, await with_progress(prober, pull))
    outcome.holds_pods |= not found.holds
    return found


async def _advance(
    api: Api,
    service: InferenceService,
    source: PulledSource,
    options: ChildOptions,
    seen: PullObjects,
    outcome: Outcome,
) -> Pull:
    if source.pvc is not None and (seen.claim is None or "deletionTimestamp" in seen.claim["metadata"]):
        how = "does not exist" if seen.claim is None else "is being deleted"
        if seen.job is not None and is_ours(seen.job) and seen.pods:  # they keep the claim from being deleted
            await delete_job(api, seen.job)
        return Pull(trouble=Trouble("ClaimMissing", f"PersistentVolumeClaim {source.pvc.claim_name} {how}"))
    for kind, live in ((JOB.name, seen.job), (NETWORK_POLICY.name, seen.policy)):
        if live is not None and not is_ours(live):
            outcome.conflicts.append(
                f"{kind} {live['metadata']['name']} already exists and was not created by an operator"
            )
            return Pull()
    job, pull = build_pull_job(service, source, options), judge(seen.job, seen.pods)
    if pull.done:
        await _remove_finished(api, service, pull, seen)
        return pull
    await apply_policy(api, build_pull_policy(service, source, options, seen.claim), seen.policy)
    if seen.job is None:
        if await create_job(api, job):
            log.info("pull started", extra={"model": source.name, "service": str(service.ref)})
    elif "deletionTimestamp" in seen.job["metadata"]:
        pass  # the next look creates another one
    elif is_outdated(seen.job, job, pull):
        await delete_job(api, seen.job)
        log.info("pull Job replaced", extra={"job": job["metadata"]["name"], "service": str(service.ref)})
    else:
        await _hand_over(api, seen.job, owners(seen.job, owner_service(service), owner_claim(seen.claim)))
    return pull


async def _remove_finished(api: Api, service: InferenceService, pull: Pull, seen: PullObjects) -> None:
    """Store the report of a pull in its Job, make the claim the Job's owner, and delete the Job's pods: while one
    exists, the claim cannot be deleted."""
    assert seen.job is not None
    if seen.pods:
        note = {"metadata": {"annotations": {ANNOTATION_PULLED: pull.report}}}
        await api.merge(JOB, service.ref.namespace, seen.job["metadata"]["name"], note)
    owner = owner_claim(seen.claim)
    await _hand_over(api, seen.job, [] if owner is None else [owner])
    for pod in seen.pods:
        await api.delete(POD, pod)


async def _hand_over(api: Api, job: Mapping[str, Any], to: list[Any]) -> None:
    """Set the owners of the Job."""
    metadata = job["metadata"]
    if (metadata.get("ownerReferences") or []) != to:
        await api.merge(JOB, metadata["namespace"], metadata["name"], {"metadata": {"ownerReferences": to}})
