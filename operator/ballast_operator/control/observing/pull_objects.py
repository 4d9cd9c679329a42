"""Reads the objects of a pull: its Job, the Job's pods, its policy, and the claim that it fills."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import CLAIM, JOB, NETWORK_POLICY, POD
from ballast_operator.control.deciding.pull import Pull
from ballast_operator.control.observing.probe import ProbeError, Prober
from ballast_operator.resources.pulling.job_pod import LABEL_PULL
from ballast_operator.resources.pulling.pull_job import pull_name


@dataclass(frozen=True, slots=True)
class PullObjects:
    """The live objects; None for those that do not exist."""

    job: dict[str, Any] | None
    policy: dict[str, Any] | None
    claim: dict[str, Any] | None
    pods: tuple[Mapping[str, Any], ...]


async def observe_pull(api: Api, service: InferenceService, source: PulledSource) -> PullObjects:
    """Read the objects. Raises ApiError."""
    namespace, name = service.ref.namespace, pull_name(service.spec, source)
    job, policy, pods, claim = await asyncio.gather(
        api.get(JOB, namespace, name),
        api.get(NETWORK_POLICY, namespace, name),
        api.list_all(POD, namespace, f"{LABEL_PULL}={name}"),
        _claim(api, namespace, source),
    )
    return PullObjects(job, policy, claim, tuple(pods or ()))


async def with_progress(prober: Prober, pull: Pull) -> Pull:
    """The pull with its reported progress, if it runs and reports one."""
    if not pull.running or pull.ip is None:
        return pull
    try:
        _, answer = await prober.readiness(pull.ip)
        share = float(answer["progress"])
    except (ProbeError, KeyError, TypeError, ValueError):
        return pull
    return replace(pull, progress=share) if 0 <= share <= 1 else pull


async def _claim(api: Api, namespace: str, source: PulledSource) -> dict[str, Any] | None:
    return None if source.pvc is None else await api.get(CLAIM, namespace, source.pvc.claim_name)
