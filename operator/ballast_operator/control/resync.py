"""Lists everything at an interval: finds what the watches missed, and whether they still deliver."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import (
    ENDPOINT_SLICE,
    INFERENCE_SERVICE,
    MODEL_CACHE,
    NODE,
    OPTIONAL_KINDS,
    POD,
    Kind,
)
from ballast_operator.control.deciding.declared_fields import undeclared_fields
from ballast_operator.control.deciding.node_match import fingerprint
from ballast_operator.control.observing.freshness import Freshness
from ballast_operator.control.state import OperatorState, version_of
from ballast_operator.definitions import DEFINITIONS
from ballast_operator.names import API_VERSION, LABEL_OWNER_UID, MANAGED_SELECTOR, Ref, labels_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Resync:
    """Lists each kind once and enqueues every service whose objects differ from what its last pass saw."""

    api: Api
    state: OperatorState
    freshness: Freshness
    enqueue: Callable[[Ref], None]
    clock: Callable[[], float]
    namespaces: Sequence[str | None] = (None,)
    """Namespaces whose services are listed; None: all."""
    on_progress: Callable[[], None] = lambda: None
    """Called after each LIST: a resync takes long where the API server is slow and namespaces are many."""
    _nodes: dict[str, str] = field(default_factory=dict)

    async def run_once(self) -> int:
        """Run one resync. Returns the number of services. Raises ApiError."""
        found = await self._list(INFERENCE_SERVICE)
        if found is None:
            raise ApiError(f"list {INFERENCE_SERVICE.plural}", 404, "the CustomResourceDefinition is not installed")
        services = {ref_of(body): body for body in found}
        await self._learn_kinds()
        await self._learn_schemas()
        versions: defaultdict[str, dict[str, str]] = defaultdict(dict)
        pods = await self._list(POD, MANAGED_SELECTOR) or []
        for body in [*pods, *await self._children()]:
            uid, version = version_of(body)
            versions[labels_of(body).get(LABEL_OWNER_UID, "")][uid] = version
        self.freshness.compare([*services.values(), *pods], self.clock())
        nodes_changed = await self._look_at_nodes()
        for ref, body in services.items():
            uid, version = version_of(body)
            known = self.state.of(ref)
            if known.versions != {**versions[uid], uid: version} or (nodes_changed and known.refused):
                self.enqueue(ref)
        for ref in self.state.services.keys() - services.keys():
            self.state.forget(ref)
        return len(services)

    async def _learn_kinds(self) -> None:
        known = frozenset([kind for kind in OPTIONAL_KINDS if await self.api.knows(kind)])
        if changed := known ^ self.state.known:
            for kind in changed:
                log.info("kind came or went", extra={"kind": kind.name, "known": kind in known})
            self.state.known = known
            for ref in self.state.services:
                self.enqueue(ref)

    async def _learn_schemas(self) -> None:
        """Learn which fields the installed definitions declare. New ones are missing in the statuses so far."""
        try:
            schemas = await self.api.schemas(API_VERSION)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            log.warning("the schemas of definitions cannot be read", extra={"error": str(error)})
            return
        if schemas == self.state.schemas:
            return
        self.state.schemas = schemas
        for kind in (INFERENCE_SERVICE, MODEL_CACHE):
            definition = DEFINITIONS[kind.plural]()
            wanted = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            missing = list(undeclared_fields(wanted, schemas.get(kind.name, wanted)))
            if missing:
                log.warning(
                    "the definition is of an earlier release; upgrade the chart's release with crds.install=true, "
                    "or, without the chart, apply charts/ballast/files/crd. Until then the fields that the definition "
                    "lacks have no effect and are not in the status",
                    extra={"definition": definition["metadata"]["name"], "lacks": ", ".join(missing)},
                )
        for ref in self.state.services:
            self.enqueue(ref)

    async def _children(self) -> list[dict[str, Any]]:
        found = []
        for kind in (ENDPOINT_SLICE, *self.state.child_kinds()):
            try:
                found += await self._list(kind, MANAGED_SELECTOR) or []
            except ApiError as error:
                if error.status != 403:
                    raise
                log.warning("may not be listed", extra={"kind": kind.name, "error": str(error)})
        return found

    async def _look_at_nodes(self) -> bool:
        """Whether any node changed since the last resync. Only services whose pods a kubelet rejected depend on it."""
        if not any(known.refused for known in self.state.services.values()):
            self._nodes = {}
            return False
        nodes = {body["metadata"]["name"]: fingerprint(body) for body in await self.api.list_all(NODE) or []}
        changed = bool(self._nodes) and nodes != self._nodes
        self._nodes = nodes
        if changed:
            self.state.nodes_changed = self.clock()
        return changed

    async def _list(self, kind: Kind, selector: str = "") -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = []
        for namespace in self.namespaces:
            items = await self.api.list_all(kind, namespace, selector)
            self.on_progress()
            if items is None:
                return None
            found += items
        return found


def ref_of(body: Mapping[str, Any]) -> Ref:
    """The namespace and name of an object."""
    return Ref(body["metadata"]["namespace"], body["metadata"]["name"])
