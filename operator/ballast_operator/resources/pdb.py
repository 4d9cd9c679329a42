"""The PodDisruptionBudget: node drains take one replica at a time."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import pod_selector
from ballast_operator.resources.meta import child_metadata


def build_pdb(service: InferenceService) -> dict[str, Any]:
    """The budget: all replicas except one stay. A single replica may be evicted, or its node could never be drained.

    `minAvailable` is a number: for a percentage, the disruption controller would need the pods' controller.
    """
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
