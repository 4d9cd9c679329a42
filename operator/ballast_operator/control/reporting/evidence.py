"""The evidence of one pass of the control loop: everything that the status is derived from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_operator.api.status import Effective, PodPlacement
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.rollout import Rollout
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.reporting.numa_findings import NumaVerdict


@dataclass(frozen=True, slots=True)
class PodReport:
    """The report of one running pod about itself."""

    progress: float | None = None
    """Share of the model that is loaded, while it loads."""
    placement: PodPlacement | None = None
    verdict: NumaVerdict | None = None
    effective: Effective | None = None
    device: str | None = None
    """The device that it computes on; None for older runtimes, which do not report it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The observations and actions of one pass."""

    pods: tuple[Pod, ...] = ()
    rollout: Rollout = field(default_factory=Rollout)
    reports: Mapping[str, PodReport] = field(default_factory=dict)
    """By the pod's uid."""
    conflicts: tuple[str, ...] = ()
    """Messages about objects that have a child's name but belong to something else."""
    refusals: tuple[str, ...] = ()
    """Messages about children that the API server rejects."""
    delays: tuple[str, ...] = ()
    """Messages about pending work that does not affect readiness."""
    behind: frozenset[str] | None = None
    """Uids of the pods that are endpoints of the Service; None if they could not be read."""
    unserved: str | None = None
    """The ready pods that are no endpoints of the Service, so that no client reaches them."""
    service_failure: str | None = None
    """The reason why the engine was not reached through the Service; None if it was reached."""
    addresses: tuple[str, ...] = ()
    """Addresses of the Service's load balancer: IP addresses or host names."""
    lost_nodes: Mapping[str, str] = field(default_factory=dict)
    """Name → fault of each node that no longer reports."""
    rivals: str | None = None
    """Message about other installs of the operator that watch the service; None if there are none."""
    no_capacity: str | None = None
    """The reason why no NUMA node has capacity for a pod, if the cluster reports it."""
    unplaced: str | None = None
    """The reason why no node could run a pod that the scheduler cannot place, even without other pods."""
    held: Finding | None = None
    """The reason why no further serving pod is replaced: its successor could not start."""
    idle_s: float = 0.0
    """Seconds without progress."""
    failed: bool = False
    """Whether the service was reported as failed since it last made progress."""
    pulled: Finding | None = None
    """Whether the model was downloaded; None if it needs no download."""
