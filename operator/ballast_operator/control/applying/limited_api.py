"""The client of the API server, which also rejects pods that exceed the operator's quotas.

It refuses as an admission plug-in of the API server would, so a pod beyond its quota is handled like one beyond a
ResourceQuota: the pods that run stay, and the status says why there are no more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import POD, Kind
from ballast_operator.control.deciding.ownership import controller_of, is_service
from ballast_operator.limits.quotas import Quotas, why_over_quota
from ballast_operator.resources.pod import parse_pod_name


class QuotaError(ApiError):
    """A pod exceeds the quota of its namespace."""

    refused_by = "the operator's quota (--quota)"


class LimitedApi(Api):
    """Counts pods as the API server has them, one creation at a time in each namespace."""

    def __init__(self, quotas: Quotas, count: Callable[[str, int, float], None]) -> None:
        super().__init__(count)
        self._quotas = quotas
        self._creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """As Api does. Raises QuotaError for a pod that exceeds the quota of its namespace."""
        if not self._limits(kind, body, namespace):
            return await super().create(kind, body, namespace)
        assert namespace is not None
        async with self._creating[namespace]:
            await self._check(body, namespace)
            return await super().create(kind, body, namespace)

    async def try_create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> None:
        """As Api does. Raises QuotaError for a pod that exceeds the quota of its namespace."""
        if self._limits(kind, body, namespace):
            assert namespace is not None
            await self._check(body, namespace)
        await super().try_create(kind, body, namespace)

    def _limits(self, kind: Kind, body: Mapping[str, Any], namespace: str | None) -> bool:
        return kind == POD and namespace is not None and bool(self._quotas.of(namespace)) and _counts(body)

    async def _check(self, body: Mapping[str, Any], namespace: str) -> None:
        """Compare with all pods of services, with or without labels, except the one that this pod replaces."""
        live = [pod for pod in await self.list_all(POD, namespace) or [] if _counts(pod) and _slot(pod) != _slot(body)]
        why = why_over_quota(self._quotas.of(namespace), live, body)
        if why is not None:
            raise QuotaError(f"create Pod {body['metadata']['name']}", 403, f"{why} in namespace {namespace}")


def _counts(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is a replica of a service. Pulls and checks of images are not limited."""
    owner = controller_of(pod)
    is_over = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    return owner is not None and is_service(owner) and _slot(pod) is not None and not is_over


def _slot(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """The service and the replica of a pod, by its name, which cannot be changed."""
    named = parse_pod_name(pod["metadata"]["name"])
    return None if named is None else (named[0], named[1].replica)
