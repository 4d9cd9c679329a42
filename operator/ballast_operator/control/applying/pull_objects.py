"""Writes the Jobs that pull and remove models, and the policies of their pods. Every function raises ApiError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import JOB, NETWORK_POLICY


async def create_job(api: Api, job: Mapping[str, Any]) -> bool:
    """Create the Job. Returns False if there is one of its name, as after an earlier pass or for another service."""
    try:
        await api.create(JOB, job, job["metadata"]["namespace"])
    except ApiError as error:
        if error.status != 409:
            raise
        return False
    return True


async def delete_job(api: Api, job: Mapping[str, Any]) -> None:
    """Delete the Job and its pods."""
    await api.delete(JOB, job, propagation="Background")


async def apply_policy(api: Api, policy: Mapping[str, Any], live: Mapping[str, Any] | None) -> None:
    """Apply the NetworkPolicy if its rules differ, as after a change of proxies."""
    if live is None or live["spec"].get("egress") != policy["spec"]["egress"]:
        await api.apply(NETWORK_POLICY, policy)
