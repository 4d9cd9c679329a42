"""The PodMonitor: the pods whose metrics Prometheus scrapes."""

from __future__ import annotations

import re
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.child_options import ChildOptions
from ballast_operator.names import ADMIN_PORT_NAME, LABEL_SERVICE, pod_selector
from ballast_operator.resources.meta import child_metadata

_LABEL_WITH_SERVICE = {
    "sourceLabels": ["__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9]", "_", LABEL_SERVICE)],
    "targetLabel": "service",
}
"""Adds the label with which dashboards and alerts distinguish services."""


def build_pod_monitor(service: InferenceService, options: ChildOptions) -> dict[str, Any]:
    """The PodMonitor, for clusters with prometheus-operator's CRD."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": child_metadata(service, service.ref.name, options.pod_monitor_labels),
        "spec": {
            "selector": {"matchLabels": pod_selector(service.ref.name)},
            "podMetricsEndpoints": [
                {
                    "port": ADMIN_PORT_NAME,
                    "path": "/metrics",
                    "interval": options.pod_monitor_interval,
                    "relabelings": [_LABEL_WITH_SERVICE],
                }
            ],
        },
    }
