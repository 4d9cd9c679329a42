"""The evidence of one pass of the control loop: everything that the status is made from."""

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
    """What one running pod reports about itself."""

    progress: float | None = None
    """Share of the model that is loaded, while it loads."""
    placement: PodPlacement | None = None
    verdict: NumaVerdict | None = None
    effective: Effective | None = None
    device: str | None = None
    """Where it computes; None where an older runtime does not say."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one pass observed and did."""

    pods: tuple[Pod, ...] = ()
    rollout: Rollout = field(default_factory=Rollout)
    reports: Mapping[str, PodReport] = field(default_factory=dict)
    """By the pod's uid."""
    conflicts: tuple[str, ...] = ()
    """Sentences about objects that have a child's name and are not ours."""
    refusals: tuple[str, ...] = ()
    """Sentences about children that the API server does not accept."""
    delays: tuple[str, ...] = ()
    """Sentences about what is not done yet and does not keep the service from being ready."""
    behind: frozenset[str] | None = None
    """Uids of the pods that the Service leads to; None where that could not be read."""
    unserved: str | None = None
    """Which ready pods no client reaches, as they are no endpoints of the Service."""
    service_failure: str | None = None
    """Why the engine was not reached through the Service; None if it was."""
    addresses: tuple[str, ...] = ()
    """Addresses of the Service's load balancer: IP addresses or names of hosts."""
    lost_nodes: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with nodes that report no more, by name."""
    rivals: str | None = None
    """Which other installs of the operator look after the service, as a sentence; None: none does."""
    no_capacity: str | None = None
    """Why no NUMA node has capacity for a pod, where the cluster tells."""
    held: Finding | None = None
    """Why no further pod that serves is replaced: the pod that would follow could not start."""
    idle_s: float = 0.0
    """Seconds without progress."""
    failed: bool = False
    """Whether the service was reported as failed since it last made progress."""
    pulled: Finding | None = None
    """Whether the model was pulled from its hub; None where it comes from none."""
