"""The Service: one stable address for the pods that are ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import API_PORT_NAME, pod_selector
from ballast_operator.resources.meta import child_metadata


def build_service(service: InferenceService) -> dict[str, Any]:
    """The Service, with only the API port: metrics and debug pages are read from each pod."""
    options = service.spec.endpoint.service
    metadata = child_metadata(service, service.ref.name)
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": options.type,
            **({"externalTrafficPolicy": "Cluster"} if options.type != "ClusterIP" else {}),
            # The defaults, set explicitly: with another policy, clients on other nodes could not connect.
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": pod_selector(service.ref.name),
            "ports": [
                {
                    "name": API_PORT_NAME,
                    "port": service.spec.endpoint.port,
                    "protocol": "TCP",
                    "targetPort": API_PORT_NAME,
                }
            ],
        },
    }


def external_url(service: InferenceService, addresses: Sequence[str]) -> str | None:
    """The OpenAI API's base URL at the load balancer's first address; None without one."""
    if not addresses:
        return None
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return f"http://{host}:{service.spec.endpoint.port}/v1"


def service_url(service: InferenceService) -> str:
    """The OpenAI API's base URL inside the cluster."""
    return f"http://{service.ref.name}.{service.ref.namespace}.svc:{service.spec.endpoint.port}/v1"
