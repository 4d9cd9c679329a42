"""The operator's own options, from flags or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """What the children are made from beside the spec."""

    runtime_image: str = "ballast-runtime:latest"
    """The runtime's image where the spec names none."""
    operator_namespace: str = "ballast-system"
    """The namespace of the operator's pods, which network policies admit."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which Prometheus finds its PodMonitors."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How the operator's process runs."""

    identity: str
    """Name of this replica in the lease."""
    lease_namespace: str = "ballast-system"
    lease_name: str = "ballast-operator"
    namespaces: tuple[str, ...] = ()
    """Namespaces where services are looked for; empty: all."""
    health_host: str = "0.0.0.0"  # noqa: S104  the kubelet's probes come from outside the pod
    health_port: int = 8080
    resync_s: float = 60.0
    """Seconds between resyncs."""
    probe_proxy: str | None = None
    """HTTP proxy to pods and Services, for an operator outside the cluster."""
