"""What the operator itself is told, by flags or environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """What goes into children beside the spec."""

    runtime_image: str = "ballast-runtime:latest"
    """Image of the runtime where the spec names none."""
    operator_namespace: str = "ballast-system"
    """Where the operator runs, which network policies admit."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which Prometheus finds its PodMonitors."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How the operator's process runs."""

    identity: str
    """Of this replica, in the lease."""
    lease_namespace: str = "ballast-system"
    lease_name: str = "ballast-operator"
    namespaces: tuple[str, ...] = ()
    """Where services are looked for; empty: everywhere."""
    health_host: str = "0.0.0.0"  # noqa: S104  the kubelet's probes come from outside the pod
    health_port: int = 8080
    resync_s: float = 60.0
    """How often everything is looked at."""
    probe_proxy: str | None = None
    """HTTP proxy through which pods and Services are asked, for an operator outside the cluster."""
