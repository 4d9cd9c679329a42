"""How the operator's process runs: options from flags or the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_operator.limits.quotas import Quotas


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of one replica."""

    identity: str
    """Name of this replica in the lease."""
    lease_namespace: str = "ballast-system"
    lease_name: str = "ballast-operator"
    namespaces: tuple[str, ...] = ()
    """Namespaces whose services are watched; empty: all."""
    health_host: str = "0.0.0.0"  # noqa: S104  the kubelet's probes come from outside the pod
    health_port: int = 8080
    resync_s: float = 60.0
    """Seconds between resyncs."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector for spans of passes; None: no tracing."""
    otlp_service_name: str = "ballast-operator"
    quotas: Quotas = field(default_factory=Quotas)
    """Limits for the pods of all services of a namespace together."""
    probe_proxy: str | None = None
    """HTTP proxy to pods and Services, for an operator outside the cluster."""
