"""Services with ready endpoints, as kube-proxy sees them."""

from __future__ import annotations

from devkit.cluster.kube import Kube

SERVICE_NAME = "kubernetes.io/service-name"


def ready_services(kube: Kube, namespace: str, name: str | None = None, at: str | None = None) -> set[str]:
    """Names of the namespace's Services with a ready endpoint, now or at resource version `at`. With `name`, only this
    Service is checked."""
    slices = kube.list("endpointslices", namespace, None if name is None else {SERVICE_NAME: name}, at=at)
    return {
        item["metadata"]["labels"][SERVICE_NAME]
        for item in slices
        if any(endpoint["conditions"].get("ready") for endpoint in item["endpoints"] or [])
    }
