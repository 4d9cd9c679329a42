"""Leader election by a Lease.

The client library's own election sets no limit on its requests: one that stalls for longer than the lease would leave
two leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import LEASE

log = logging.getLogger(__name__)

LEASE_S = 30
"""How long the others wait after the leader last renewed."""
RENEW_S = 5.0
DEADLINE_S = 20.0
"""A leader that could not renew for this long stops, before another begins. Two slow requests of 5 s fit in."""


@dataclass(slots=True)
class Election:
    """One candidate in the election."""

    api: Api
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    _seen: tuple[str, float] | None = field(default=None)
    """The lease's version, and when this candidate first saw it by its own clock: others' clocks are not trusted."""
    _held: dict[str, Any] | None = field(default=None)
    """The lease as this candidate last wrote it, which makes renewing one request."""

    async def acquire(self) -> float:
        """Wait until this candidate leads. Returns the clock's time at which its lease began."""
        while True:
            began = self.clock()
            if await self._try_limited(DEADLINE_S):
                log.info("leading", extra={"identity": self.identity})
                return began
            await asyncio.sleep(RENEW_S)

    async def hold(self, since: float) -> None:
        """Renew until leadership is lost. Returns at most DEADLINE_S after the last renewal."""
        while (left_s := since + DEADLINE_S - self.clock()) > 0:
            await asyncio.sleep(min(RENEW_S, left_s))
            began = self.clock()
            if began < since + DEADLINE_S and await self._try_limited(since + DEADLINE_S - began):
                since = began
        log.warning("no longer leading", extra={"identity": self.identity})

    async def release(self) -> None:
        """Give the lease up, so that another can lead at once. Raises ApiError."""
        lease = await self.api.get(LEASE, self.namespace, self.name)
        if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
            await self.api.replace(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})

    async def _try_limited(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                return await self._try()
        except TimeoutError:
            self._held = None  # it may have been written
            log.warning("the lease could not be renewed in time", extra={"limit_s": round(limit_s, 1)})
        except ApiError as error:
            self._held = None
            if error.status != 409:  # another candidate was quicker
                log.warning("the lease could not be renewed", extra={"error": str(error)})
        return False

    async def _try(self) -> bool:
        stamp = self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": stamp,
        }
        lease = self._held or await self.api.get(LEASE, self.namespace, self.name)
        if lease is None:
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": {**mine, "acquireTime": stamp, "leaseTransitions": 0},
            }
            self._held = await self.api.create(LEASE, body, self.namespace)
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        if spec.get("holderIdentity") == self.identity:
            taken = {**spec, **mine}
        elif spec.get("holderIdentity") and not self._expired(lease, spec):
            return False
        else:
            taken = {**spec, **mine, "acquireTime": stamp, "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        self._held = await self.api.replace(LEASE, {**lease, "spec": taken})
        return True

    def _expired(self, lease: dict[str, Any], spec: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = version, self.clock()
        return bool(self.clock() - self._seen[1] > spec.get("leaseDurationSeconds", LEASE_S))
