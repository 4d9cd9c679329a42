"""Finds out which other installs of the operator are alive, by their Leases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import LEASE
from ballast_operator.control.deciding.other_installs import Rivalry, other_installs, rivalry
from ballast_operator.names import Ref

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""Age to which a Lease that was read is believed."""
PATIENCE_S = 40.0
"""A Lease that was not renewed for this long is nobody's. By our own clock: others' clocks are not trusted."""


@dataclass(slots=True)
class _Sight:
    lease: Mapping[str, Any] | None
    read_at: float
    unchanged_since: float


@dataclass(slots=True)
class Installs:
    """What one install knows of the others. `own`: namespace and name of its Lease."""

    api: Api
    own: Ref
    clock: Callable[[], float]
    _seen: dict[Ref, _Sight] = field(default_factory=dict)
    _told: frozenset[Ref] = frozenset()

    async def look(self, body: Mapping[str, Any]) -> Rivalry:
        """Who writes to this service beside us, and who is to act. Alone, nobody is asked. Raises ApiError."""
        others, nameless = other_installs(body, self.own)
        if not others:
            return Rivalry(gone=tuple(nameless))
        alive = {ref: created for ref in others if (created := await self._created(ref)) is not None}
        if new := alive.keys() - self._told:
            log.warning("another operator looks after our services", extra={"lease": ", ".join(map(str, sorted(new)))})
        self._told = self._told | alive.keys()
        gone = [*nameless, *(str(ref) for ref in others if ref not in alive)]
        mine = await self._created(self.own)
        return rivalry(self.own, alive if mine is None else {**alive, self.own: mine}, gone)

    async def _created(self, ref: Ref) -> str | None:
        """When the Lease was made; None where it is not there, or nobody holds it any more."""
        sight = await self._sight(ref)
        if sight.lease is None or not (sight.lease.get("spec") or {}).get("holderIdentity"):
            return None
        if self.clock() - sight.unchanged_since > PATIENCE_S:
            return None
        return str(sight.lease["metadata"]["creationTimestamp"])

    async def _sight(self, ref: Ref) -> _Sight:
        known, now = self._seen.get(ref), self.clock()
        if known is not None and now - known.read_at < LOOK_AGAIN_S:
            return known
        try:
            lease = await self.api.get(LEASE, ref.namespace, ref.name)
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning("a Lease may not be read", extra={"lease": str(ref), "error": str(error)})
            lease = None
        same = known is not None and _version(known.lease) == _version(lease)
        since = known.unchanged_since if known is not None and same else now
        self._seen[ref] = _Sight(lease, now, since)
        return self._seen[ref]


def _version(lease: Mapping[str, Any] | None) -> str | None:
    return None if lease is None else lease["metadata"]["resourceVersion"]
