"""State that the operator keeps between passes. All of it may be lost at any time: it only saves work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.cluster.kinds import CHILD_KINDS, ENDPOINT_SLICE, INFERENCE_SERVICE, MODEL_CACHE, POD, Kind
from ballast_operator.control.deciding.declared_fields import declared_part
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.progress import ProgressClock
from ballast_operator.control.deciding.take_down import Observation
from ballast_operator.control.reporting.evidence import PodReport
from ballast_operator.names import Ref

Incarnation = tuple[str, int]
Reach = tuple[str, str, frozenset[Incarnation], frozenset[str]]
"""A Service's uid and address, the processes that were behind it, and the uids of the pods among its endpoints."""
Versions = Mapping[str, str]
"""Resource versions by uid."""

READS = ("get", "list", "discover")
"""Verbs that no admission webhook can delay or refuse."""
LATE_S = 5.0
"""An answer to a read that takes longer than this shows that the control plane stalls."""


@dataclass(slots=True)
class ServiceState:
    """The operator's state of one InferenceService."""

    reached: Reach | None = None
    """The last successful request through the Service; None if there was none since a pod was last not ready."""
    unreached: int = 0
    """Failed attempts in a row to reach it."""
    reports: dict[Incarnation, tuple[float, PodReport]] = field(default_factory=dict)
    """The processes' last reports, each with the loop time at which it came."""
    first_seen: dict[str, float] = field(default_factory=dict)
    """The loop time at which each of its pods was first seen, by uid."""
    unready_since: dict[str, float] = field(default_factory=dict)
    """The loop time since which each of its pods that is not ready was seen so, by uid."""
    versions: Versions = field(default_factory=dict)
    """Versions of the objects that the last pass read."""
    conditions: Sequence[Mapping[str, Any]] = ()
    """Conditions of the status that the last pass computed."""
    abandoned_uid: str | None = None
    """Uid of the service if its namespace is being deleted or gone: nothing more is written for it."""
    pulling_since: float | None = None
    """The loop time at which its model was first seen not to be pulled yet; None once it is."""
    progress: ProgressClock = field(default_factory=ProgressClock)
    revision: str | None = None
    """The revision of the history that was last written or found to be the newest."""
    checks_images: bool = True
    """Whether there may be a pod that checks images: a new operator does not know."""
    unplaced: tuple[tuple[str, float | None], str | None] | None = None
    """Why no node could run a pod that the scheduler cannot place, with the pod's uid and the change of nodes before
    which this was found."""
    refused: bool = False
    """The next pods wait for a node: changes of nodes matter."""

    def ages_s(self, uids: Sequence[str], now: float) -> dict[str, float]:
        """Seconds since each of these pods was first seen, which is now for a new one. Others are forgotten."""
        self.first_seen = {uid: self.first_seen.get(uid, now) for uid in uids}
        return {uid: now - since for uid, since in self.first_seen.items()}

    def unready_s(self, pods: Sequence[Pod], now: float) -> dict[str, float]:
        """Seconds since each of these pods that is not ready was first seen so. Others are forgotten."""
        self.unready_since = {pod.uid: self.unready_since.get(pod.uid, now) for pod in pods if not pod.ready}
        return {uid: now - since for uid, since in self.unready_since.items()}


@dataclass(slots=True)
class OperatorState:
    """The operator's state of all services and of the cluster."""

    services: dict[Ref, ServiceState] = field(default_factory=dict)
    known: frozenset[Kind] = frozenset()
    """The optional kinds that the cluster has."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The schemas of the installed definitions, by kind."""
    nodes_changed: float | None = None
    """The loop time at which a node last changed."""
    disturbed: float | None = None
    """The loop time at which the API server last failed to answer a read, or answered late."""

    def note_answer(self, verb: str, status: int, seconds: float, now: float) -> None:
        """Record how the API server answered a request. Status 0: not at all."""
        if status == 0 or (verb in READS and (status == 429 or status >= 500 or seconds > LATE_S)):
            self.disturbed = now

    def observation(self, ref: Ref, pods: Sequence[Pod], now: float) -> Observation:
        """The durations for a service's pods, which were read just now."""
        known = self.of(ref)
        return Observation(
            ages_s=known.ages_s([pod.uid for pod in pods], now),
            unready_s=known.unready_s(pods, now),
            undisturbed_s=float("inf") if self.disturbed is None else now - self.disturbed,
            nodes_changed_s=None if self.nodes_changed is None else now - self.nodes_changed,
        )

    def declared_status(self, kind: Kind, status: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a status that the installed definition of its kind declares."""
        schema = self.schemas.get(kind.name, {}).get("properties", {}).get("status", {})
        return dict(declared_part(status, schema))

    def child_kinds(self) -> tuple[Kind, ...]:
        """The kinds other than pods that services own and that the cluster has."""
        return tuple(kind for kind in CHILD_KINDS if not kind.optional or kind in self.known)

    def watched_kinds(self) -> tuple[Kind, ...]:
        """The kinds that are watched."""
        caches = (MODEL_CACHE,) if MODEL_CACHE in self.known else ()
        return INFERENCE_SERVICE, POD, ENDPOINT_SLICE, *self.child_kinds(), *caches

    def of(self, ref: Ref) -> ServiceState:
        """The state of one service."""
        return self.services.setdefault(ref, ServiceState())

    def forget(self, ref: Ref) -> None:
        """Drop the state of a service that is gone."""
        self.services.pop(ref, None)


def version_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """An object's uid and resource version."""
    metadata = body["metadata"]
    return metadata["uid"], metadata["resourceVersion"]
