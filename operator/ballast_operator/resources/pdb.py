"""The PodDisruptionBudget: node drains take one replica at a time."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.names import pod_selector
from ballast_operator.resources.meta import child_metadata


def build_pdb(service: InferenceService) -> dict[str, Any]:
    """All replicas but one stay. A single one may be evicted: it drains first, and a node that can never be drained
    helps nobody. A number of pods, as the disruption controller counts those without asking what controls them."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(service, service.ref.name),
        "spec": {
            "minAvailable": max(0, service.spec.replicas - 1),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pod_selector(service.ref.name)},
        },
    }
