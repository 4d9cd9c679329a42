"""What children are made from beside their spec: options of the operator, from flags or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ballast_operator.allow_lists import AllowLists


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """The same ones for every service."""

    runtime_image: str = "ballast-runtime:latest"
    """The runtime's image where the spec names none."""
    cpu_runtime_image: str | None = None
    """The one for services without GPUs; None: the same."""
    operator_namespace: str = "ballast-system"
    """The namespace of the operator's pods, which network policies admit."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which Prometheus finds its PodMonitors."""
    pod_monitor_interval: str = "30s"
    """How often Prometheus scrapes the engines."""
    allowed: AllowLists = field(default_factory=AllowLists)
    """What specs may ask for."""

    def with_image(self, image: str) -> ChildOptions:
        """These options with one image for all services that name none."""
        return replace(self, runtime_image=image, cpu_runtime_image=None)
