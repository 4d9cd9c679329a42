"""Leader election by a Lease.

The client library's own election has no timeout for its requests: a request that stalls for longer than the lease would
cause two leaders.
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
from ballast_operator.names import ANNOTATION_NAMESPACES, ANNOTATION_PROCESS, LABEL_INSTALL

log = logging.getLogger(__name__)

LEASE_S = 30
"""Time that the others wait after the leader's last renewal."""
RENEW_S = 5.0
DEADLINE_S = 20.0
"""A leader that cannot renew for this long stops before another one starts. Two slow requests of 5 s fit in."""


@dataclass(slots=True)
class Election:
    """One candidate in the election."""

    api: Api
    namespace: str
    name: str
    identity: str
    process: str
    """Distinguishes this process from others with the same identity."""
    clock: Callable[[], float]
    now: Callable[[], datetime]
    namespaces: tuple[str, ...] = ()
    """The namespaces that this install watches; empty: all. Other installs read them from the Lease."""
    _seen: tuple[str, float] | None = field(default=None)
    """The lease's version, and the time of this candidate's clock when it was first seen; clocks may differ."""
    _held: dict[str, Any] | None = field(default=None)
    """The lease as this candidate last wrote it, so that a renewal needs one request."""
    _has_led: bool = field(default=False)
    _lost_election: bool = field(default=False)
    """Another process with this identity holds the lease."""

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
        while (left_s := since + DEADLINE_S - self.clock()) > 0 and not self._lost_election:
            await asyncio.sleep(min(RENEW_S, left_s))
            began = self.clock()
            if began < since + DEADLINE_S and await self._try_limited(since + DEADLINE_S - began):
                since = began
        log.warning("no longer leading", extra={"identity": self.identity})

    async def release(self) -> None:
        """Release the lease, so that another replica can lead immediately. Raises ApiError."""
        lease = await self.api.get(LEASE, self.namespace, self.name)
        if lease is not None and self._is_ours(lease):
            await self.api.replace(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})

    def _is_ours(self, lease: dict[str, Any]) -> bool:
        """Whether we may take the lease without waiting.

        An earlier process with our identity has ended, such as a container that restarted in its pod. A process that
        takes the lease after we had it is alive: the newer one leads, so that they do not alternate.
        """
        writer = (lease["metadata"].get("annotations") or {}).get(ANNOTATION_PROCESS)
        is_named = (lease.get("spec") or {}).get("holderIdentity") == self.identity
        return is_named and (writer == self.process or not self._has_led)

    async def _try_limited(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                return await self._try()
        except TimeoutError:
            self._held = None  # it may have been written
            log.warning("the lease could not be renewed in time", extra={"limit_s": round(limit_s, 1)})
        except ApiError as error:
            self._held = None
            if error.status != 409:  # another candidate was faster
                log.warning("the lease could not be renewed", extra={"error": str(error)})
        return False

    async def _try(self) -> bool:
        stamp = self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": stamp,
        }
        labels = {LABEL_INSTALL: "true"}
        marked = {ANNOTATION_PROCESS: self.process, ANNOTATION_NAMESPACES: ",".join(self.namespaces)}
        lease = self._held or await self.api.get(LEASE, self.namespace, self.name)
        if lease is None:
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {
                    "name": self.name,
                    "namespace": self.namespace,
                    "labels": labels,
                    "annotations": marked,
                },
                "spec": {**mine, "acquireTime": stamp, "leaseTransitions": 0},
            }
            self._held = await self.api.create(LEASE, body, self.namespace)
            self._has_led = True
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        if self._is_ours(lease):
            taken = {**spec, **mine}
        elif spec.get("holderIdentity") and not self._expired(lease, spec):
            if spec["holderIdentity"] == self.identity and not self._lost_election:
                message = "another process with this identity took the lease: give each its own --identity"
                log.warning(message, extra={"identity": self.identity})
                self._lost_election = True
            return False
        else:
            taken = {**spec, **mine, "acquireTime": stamp, "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        metadata = lease["metadata"]
        marks = {
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **marked},
        }
        self._held = await self.api.replace(LEASE, {**lease, "metadata": {**metadata, **marks}, "spec": taken})
        self._has_led, self._lost_election = True, False
        return True

    def _expired(self, lease: dict[str, Any], spec: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = version, self.clock()
        return bool(self.clock() - self._seen[1] > spec.get("leaseDurationSeconds", LEASE_S))
