"""Options of the operator for children, from flags or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ballast_operator.limits.allowed import AllowLists
from ballast_operator.version import __version__

SCRAPER_LABELS: Mapping[str, str] = {"app.kubernetes.io/name": "prometheus"}
"""Label that prometheus-operator gives to every pod of Prometheus."""


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """The options, the same for every service."""

    runtime_image: str = f"ballast-runtime:{__version__}"
    """The runtime's image for specs that have none."""
    cpu_runtime_image: str | None = None
    """The image for services without GPUs; None: the same."""
    operator_namespace: str = "ballast-system"
    """The namespace of the operator's pods, which network policies admit."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of PodMonitors, for Prometheus' selector."""
    pod_monitor_interval: str = "30s"
    """How often Prometheus scrapes the engines."""
    scraper_labels: Mapping[str, str] = field(default_factory=lambda: dict(SCRAPER_LABELS))
    """Labels of the pods that read PodMonitors and scrape. Network policies admit them to the admin port."""
    scraper_namespaces: tuple[str, ...] = ()
    """The namespaces of those pods; empty: any."""
    allowed: AllowLists = field(default_factory=AllowLists)
    """The values that specs may have."""

    def with_image(self, image: str) -> ChildOptions:
        """These options with one image for all services whose spec has none."""
        return replace(self, runtime_image=image, cpu_runtime_image=None)
