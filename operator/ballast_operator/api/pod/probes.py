"""The part of the spec that says how the kubelet asks the engine."""

from __future__ import annotations

from pydantic import Field

from ballast_operator.api.base import ApiType


class Readiness(ApiType):
    """Whether a pod is an endpoint of the Service."""

    period_seconds: int = Field(default=5, ge=1, le=300, description="Seconds from one question to the next.")
    timeout_seconds: int = Field(default=5, ge=1, le=300, description="Longest wait for an answer.")
    failure_threshold: int = Field(
        default=2, ge=1, le=100, description="Failures in a row after which the pod gets no requests."
    )


class Liveness(ApiType):
    """Whether the engine is restarted. It fails when a step has hung for minutes, not under load."""

    period_seconds: int = Field(default=10, ge=1, le=300, description="Seconds from one question to the next.")
    timeout_seconds: int = Field(default=5, ge=1, le=300, description="Longest wait for an answer.")
    failure_threshold: int = Field(
        default=3, ge=1, le=100, description="Failures in a row after which the engine is restarted."
    )


class Probes(ApiType):
    """How often and how patiently the kubelet asks the engine. engine.loadTimeoutSeconds is for its start."""

    readiness: Readiness = Field(
        default_factory=Readiness, description="Whether a pod is an endpoint of the Service. /readyz is asked."
    )
    liveness: Liveness = Field(
        default_factory=Liveness, description="Whether the engine is restarted. /livez is asked."
    )
