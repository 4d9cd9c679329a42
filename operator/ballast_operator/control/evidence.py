"""Everything that a status is made from, found out in one pass of the control loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_operator.api.status import Effective, PodPlacement
from ballast_operator.control.placement import Verdict
from ballast_operator.control.pods import Pod
from ballast_operator.control.rollout import Rollout


@dataclass(frozen=True, slots=True)
class PodReport:
    """What one running pod said of itself."""

    progress: float | None = None
    """Share of the model that is loaded, while it loads."""
    placement: PodPlacement | None = None
    verdict: Verdict | None = None
    effective: Effective | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was observed and done."""

    pods: tuple[Pod, ...] = ()
    rollout: Rollout = field(default_factory=Rollout)
    reports: Mapping[str, PodReport] = field(default_factory=dict)
    """By the pod's uid."""
    conflicts: tuple[str, ...] = ()
    """Sentences about objects in the way that are not ours."""
    refusals: tuple[str, ...] = ()
    """Sentences about children that the API server does not accept."""
    delays: tuple[str, ...] = ()
    """Sentences about what could not be done yet, and is not needed for being ready."""
    service_failure: str | None = None
    """Why the engine was not reached through the Service; None when it was."""
    no_room: str | None = None
    """Why no node has room on one NUMA node, where the cluster tells."""
