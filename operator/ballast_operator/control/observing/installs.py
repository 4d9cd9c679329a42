"""Finds the other installs of the operator that are running, by their Leases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import LEASE
from ballast_operator.control.deciding.other_installs import Rivalry, other_installs, rivalry
from ballast_operator.names import ANNOTATION_NAMESPACES, LABEL_INSTALL, Ref, labels_of

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""Maximum age of a Lease that was read."""
STALE_AFTER_S = 40.0
"""A Lease that was not renewed for this long has no holder. Measured by our own clock, because clocks may differ."""
HANDOVER_S = 10.0
"""How long an install that starts to lead leaves services to the others: after this, each has read its Lease."""


@dataclass(slots=True)
class _Sight:
    lease: Mapping[str, Any] | None
    read_at: float
    unchanged_since: float


@dataclass(slots=True)
class Installs:
    """The knowledge of one install about the others. `own`: namespace and name of its Lease."""

    api: Api
    own: Ref
    clock: Callable[[], float]
    _seen: dict[Ref, _Sight] = field(default_factory=dict)
    _listed_at: float = field(default=float("-inf"))
    _may_list: bool = field(default=True)
    _logged: frozenset[Ref] = frozenset()
    _led_since: float = field(default=float("-inf"))

    def begin(self) -> None:
        """This install starts to lead: if there are others, it acts only after HANDOVER_S."""
        self._led_since = self.clock()

    async def look(self, body: Mapping[str, Any]) -> Rivalry:
        """Find the other installs that watch this service, and decide which one acts. Raises ApiError.

        Others are known by their Leases before they write anything, so that a new service has one writer.
        """
        written, nameless = other_installs(body, self.own)
        others = sorted({*written, *await self._watching(body["metadata"]["namespace"])})
        alive = {ref: created for ref in others if (created := await self._created(ref)) is not None}
        gone = [*nameless, *(str(ref) for ref in written if ref not in alive)]
        if not alive:
            return Rivalry(gone=tuple(gone))
        if new := alive.keys() - self._logged:
            log.warning("another operator watches our services", extra={"lease": ", ".join(map(str, sorted(new)))})
        self._logged = self._logged | alive.keys()
        mine = await self._created(self.own)
        found = rivalry(self.own, alive if mine is None else {**alive, self.own: mine}, gone)
        return replace(found, acts=found.acts and self.clock() - self._led_since >= HANDOVER_S)

    async def _watching(self, namespace: str) -> list[Ref]:
        """The other installs that have a Lease and watch this namespace. Empty if Leases may not be listed."""
        if self._may_list and self.clock() - self._listed_at >= LOOK_AGAIN_S:
            await self._list()
        return [ref for ref, sight in self._seen.items() if ref != self.own and watches(sight.lease, namespace)]

    async def _list(self) -> None:
        try:
            leases = await self.api.list_all(LEASE, selector=f"{LABEL_INSTALL}=true") or []
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning("Leases may not be listed: apply the operator's new permissions", extra={"error": str(error)})
            self._may_list = False
            return
        self._listed_at = self.clock()
        found = {Ref(lease["metadata"]["namespace"], lease["metadata"]["name"]): lease for lease in leases}
        for ref in self._seen.keys() | found.keys():
            if ref in found or _is_marked(self._seen[ref].lease):  # others are read one by one
                self._record_lease(ref, found.get(ref))

    async def _created(self, ref: Ref) -> str | None:
        """The creation time of the Lease; None if it does not exist or has no holder."""
        sight = await self._sight(ref)
        if sight.lease is None or not (sight.lease.get("spec") or {}).get("holderIdentity"):
            return None
        if self.clock() - sight.unchanged_since > STALE_AFTER_S:
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
        return self._record_lease(ref, lease)

    def _record_lease(self, ref: Ref, lease: Mapping[str, Any] | None) -> _Sight:
        known, now = self._seen.get(ref), self.clock()
        same = known is not None and _version(known.lease) == _version(lease)
        since = known.unchanged_since if known is not None and same else now
        self._seen[ref] = _Sight(lease, now, since)
        return self._seen[ref]


def _is_marked(lease: Mapping[str, Any] | None) -> bool:
    return lease is not None and LABEL_INSTALL in labels_of(lease)


def watches(lease: Mapping[str, Any] | None, namespace: str) -> bool:
    """Whether the install of this Lease watches the namespace."""
    if lease is None or not _is_marked(lease):
        return False
    watched = (lease["metadata"].get("annotations") or {}).get(ANNOTATION_NAMESPACES, "")
    return not watched or namespace in watched.split(",")


def _version(lease: Mapping[str, Any] | None) -> str | None:
    return None if lease is None else lease["metadata"]["resourceVersion"]
