"""The HTTPRoute: sends a gateway's requests to the Service, and a share of them to a canary."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.endpoint import Gateway, Route
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.resources.meta import child_metadata

GATEWAY_GROUP = "gateway.networking.k8s.io"
REQUEST_TIMEOUT = "1h"
"""Long replies take long, but gateways have default limits of seconds."""


def build_http_route(service: InferenceService, route: Route) -> dict[str, Any]:
    """The HTTPRoute, for clusters with the Gateway API. List items have all defaults, as lists are compared whole."""
    percent = route.canary.percent if route.canary is not None else 0
    backends = [_backend(service, service.ref.name, 100 - percent)]
    if route.canary is not None:
        backends.append(_backend(service, route.canary.service, percent))
    return {
        "apiVersion": f"{GATEWAY_GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": child_metadata(service, service.ref.name),
        "spec": {
            "parentRefs": [_parent(gateway) for gateway in route.gateways],
            **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": backends,
                    "timeouts": {"request": REQUEST_TIMEOUT},
                }
            ],
        },
    }


def _parent(gateway: Gateway) -> dict[str, Any]:
    return {"group": GATEWAY_GROUP, "kind": "Gateway", **gateway.to_api()}


def _backend(service: InferenceService, name: str, weight: int) -> dict[str, Any]:
    return {"group": "", "kind": "Service", "name": name, "port": service.spec.endpoint.port, "weight": weight}
