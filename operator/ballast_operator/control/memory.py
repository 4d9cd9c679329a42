"""What the operator remembers between passes. All of it may be lost at any time: it only saves work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ballast_operator.cluster.kinds import CHILD_KINDS, INFERENCE_SERVICE, POD, POD_MONITOR, Kind
from ballast_operator.control.evidence import PodReport
from ballast_operator.names import Ref

Incarnation = tuple[str, int]
Reach = tuple[str, str, frozenset[Incarnation]]
"""uid and address of a Service, and the processes that were all there behind it."""
Versions = Mapping[str, str]
"""Resource versions by uid."""


@dataclass(slots=True)
class ServiceMemory:
    """Of one InferenceService."""

    reached: Reach | None = None
    """How the Service was last reached; None since a pod was not ready, or it was not reached."""
    unreached: int = 0
    """How often in a row the Service was not."""
    reports: dict[Incarnation, tuple[float, PodReport]] = field(default_factory=dict)
    """What running processes said, and the loop time at which they did."""
    versions: Versions = field(default_factory=dict)
    """What the last pass saw."""
    conditions: Sequence[Mapping[str, Any]] = ()
    """Of the status that the last pass found."""
    refused: bool = False
    """Pods were refused: changes of nodes matter."""


@dataclass(slots=True)
class Memory:
    """Of the whole operator."""

    services: dict[Ref, ServiceMemory] = field(default_factory=dict)
    pod_monitors: bool = False
    """The cluster knows PodMonitor."""
    node_topologies: bool = False
    """The cluster knows NodeResourceTopology."""
    nodes_changed: datetime | None = None
    """When a node last became different."""

    def child_kinds(self) -> tuple[Kind, ...]:
        """What services own beside pods, as far as the cluster knows it."""
        return tuple(kind for kind in CHILD_KINDS if kind is not POD_MONITOR or self.pod_monitors)

    def watched_kinds(self) -> tuple[Kind, ...]:
        """Everything whose changes matter at once."""
        return INFERENCE_SERVICE, POD, *self.child_kinds()

    def of(self, ref: Ref) -> ServiceMemory:
        """The memory of one service."""
        return self.services.setdefault(ref, ServiceMemory())

    def forget(self, ref: Ref) -> None:
        """The service is gone."""
        self.services.pop(ref, None)


def version_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """uid and resource version."""
    metadata = body["metadata"]
    return metadata["uid"], metadata["resourceVersion"]
