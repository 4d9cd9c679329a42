"""The part of the spec for the kubelet's probes."""

from __future__ import annotations

from pydantic import Field

from ballast_operator.api.base import ApiType


class Readiness(ApiType):
    """Whether a pod is an endpoint of the Service."""

    period_seconds: int = Field(default=5, ge=1, le=300, description="Seconds between two probes.")
    timeout_seconds: int = Field(default=5, ge=1, le=300, description="Maximum seconds to wait for an answer.")
    failure_threshold: int = Field(
        default=2, ge=1, le=100, description="Consecutive failures after which the pod gets no requests."
    )


class Liveness(ApiType):
    """Whether the engine is restarted. It fails if a step hangs for minutes, not under load."""

    period_seconds: int = Field(default=10, ge=1, le=300, description="Seconds between two probes.")
    timeout_seconds: int = Field(default=5, ge=1, le=300, description="Maximum seconds to wait for an answer.")
    failure_threshold: int = Field(
        default=3, ge=1, le=100, description="Consecutive failures after which the engine is restarted."
    )


class Probes(ApiType):
    """Intervals and timeouts of the kubelet's probes. engine.loadTimeoutSeconds is for the start."""

    readiness: Readiness = Field(
        default_factory=Readiness, description="Probe of /readyz: whether a pod is an endpoint of the Service."
    )
    liveness: Liveness = Field(
        default_factory=Liveness, description="Probe of /livez: whether the engine is restarted."
    )
