"""Which Services lead anywhere, as kube-proxy would know it."""

from __future__ import annotations

from devkit.cluster.kube import Kube

SERVICE_NAME = "kubernetes.io/service-name"


def ready_services(kube: Kube, namespace: str, name: str | None = None, at: str | None = None) -> set[str]:
    """Names of the namespace's Services that have a ready endpoint, or had at a resource version; only `name` is looked
    for where it is given."""
    slices = kube.list("endpointslices", namespace, None if name is None else {SERVICE_NAME: name}, at=at)
    return {
        item["metadata"]["labels"][SERVICE_NAME]
        for item in slices
        if any(endpoint["conditions"].get("ready") for endpoint in item["endpoints"] or [])
    }
