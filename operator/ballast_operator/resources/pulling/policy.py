"""The NetworkPolicy of pods that download models. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ballast_operator.api.sources.hugging_face import HuggingFaceModel
from ballast_operator.api.sources.oci_model import OciModel
from ballast_operator.api.sources.pulled_model import PulledModel
from ballast_operator.api.sources.s3_model import S3Model
from ballast_operator.child_options import ChildOptions
from ballast_operator.names import ADMIN_PORT_NAME, FIELD_MANAGER
from ballast_operator.resources.networkpolicy import dns_egress


def pull_policy(
    metadata: Mapping[str, Any],
    pods: Mapping[str, str],
    models: Iterable[PulledModel],
    proxies: Mapping[str, str],
    options: ChildOptions,
) -> dict[str, Any]:
    """The NetworkPolicy of pods that download: they may connect to DNS and to sources of models, and the operator may
    connect to them to read the progress.

    A source may redirect to other hosts, so the policy limits ports, not hosts.
    """
    endpoints = {url for model in models if (url := _address(model)) is not None}
    ways = (*endpoints, *(url for url in proxies.values() if "://" in url))
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": options.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": FIELD_MANAGER}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dict(metadata),
        "spec": {
            "podSelector": {"matchLabels": dict(pods)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [operator], "ports": [{"protocol": "TCP", "port": ADMIN_PORT_NAME}]}],
            "egress": [
                dns_egress(),
                {"ports": [{"protocol": "TCP", "port": port} for port in sorted({443, *map(_port, ways)})]},
            ],
        },
    }


def _address(model: PulledModel) -> str | None:
    """The URL of the model's source if its port is not that of HTTPS."""
    if isinstance(model, HuggingFaceModel | S3Model):
        return model.endpoint
    return f"https://{model.registry}" if isinstance(model, OciModel) else None


def _port(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return 443
