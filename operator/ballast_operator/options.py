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
