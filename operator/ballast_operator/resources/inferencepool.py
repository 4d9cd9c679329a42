"""The InferencePool: the pods that a gateway's endpoint picker may choose from."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.endpoint import Pool
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import pod_selector
from ballast_operator.resources.meta import child_metadata


def build_inference_pool(service: InferenceService, pool: Pool) -> dict[str, Any]:
    """The InferencePool over the service's pods, for clusters with the CRDs of the inference extension."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": child_metadata(service, service.ref.name),
        "spec": {
            "selector": {"matchLabels": pod_selector(service.ref.name)},
            "targetPorts": [{"number": service.spec.endpoint.port}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": pool.picker_name,
                "port": {"number": pool.picker_port},
                "failureMode": "FailClose",
            },
        },
    }
