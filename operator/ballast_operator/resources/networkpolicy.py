"""The NetworkPolicy: the allowed connections to and from the pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ballast_operator.api.endpoint import NetworkRules, Peer
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.child_options import ChildOptions
from ballast_operator.names import ADMIN_PORT_NAME, API_PORT_NAME, FIELD_MANAGER, pod_selector
from ballast_operator.resources.meta import child_metadata

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label of every namespace, with its name."""
DNS_PORTS = (53, 5353)
"""OpenShift's resolvers listen on the second."""


def build_network_policy(
    service: InferenceService, rules: NetworkRules, options: ChildOptions, known: Collection[str]
) -> dict[str, Any]:
    """The policy: clients and the operator reach the API; scrapers, the picker and the operator the admin port.
    The pods may connect only to collectors and to DNS.

    `known`: names of the optional kinds that the cluster has: without PodMonitor or InferencePool, none of theirs is
    admitted.
    The kubelet's probes come from the node and are not subject to policies.
    """
    pool = service.spec.endpoint.inference_pool
    scrapers = _peers(rules.monitoring) or (_scrapers(options) if "PodMonitor" in known else [])
    pickers = [_pods(pool.picker_labels)] if pool is not None and "InferencePool" in known else []
    operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: options.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": FIELD_MANAGER}},
    }
    clients = _peers(rules.clients) or [{"podSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(service, service.ref.name),
        "spec": {
            "podSelector": {"matchLabels": pod_selector(service.ref.name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                _ingress([*clients, operator], API_PORT_NAME),
                _ingress([*scrapers, *pickers, operator], ADMIN_PORT_NAME),
            ],
            **({"egress": [{"to": _peers(rules.collectors)}, dns_egress()]} if rules.collectors else {}),
        },
    }


def dns_egress() -> dict[str, Any]:
    """DNS is allowed to any address, because the cluster's resolvers may be on nodes."""
    return {"ports": [{"protocol": kind, "port": port} for port in DNS_PORTS for kind in ("UDP", "TCP")]}


def _ingress(peers: list[dict[str, Any]], port: str) -> dict[str, Any]:
    return {"from": peers, "ports": [{"protocol": "TCP", "port": port}]}


def _scrapers(options: ChildOptions) -> list[dict[str, Any]]:
    """The pods of the operator's options, in their namespaces or in any."""
    pods = _pods(options.scraper_labels)
    namespaces = [{"matchLabels": {NAMESPACE_NAME: name}} for name in options.scraper_namespaces]
    return [{**pods, "namespaceSelector": selector} for selector in namespaces or [{}]]


def _pods(labels: Mapping[str, str] | None) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": dict(labels)} if labels else {}}


def _peers(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    found = []
    for peer in peers:
        selectors = _pods(peer.pod_labels)
        if peer.namespace_labels is not None:
            selectors["namespaceSelector"] = {"matchLabels": peer.namespace_labels} if peer.namespace_labels else {}
        found.append(selectors)
    return found
