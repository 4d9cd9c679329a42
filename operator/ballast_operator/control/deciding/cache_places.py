"""Which nodes a ModelCache fills. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.control.deciding.node_match import HARD_EFFECTS, tolerates
from ballast_operator.names import labels_of

TRANSIENT_TAINT_PREFIX = "node.kubernetes.io/"
"""Prefix of taints that the cluster sets and takes away: the node keeps its models meanwhile."""


def places_of(spec: ModelCacheSpec, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the nodes that keep the models, in order."""
    return sorted(node["metadata"]["name"] for node in nodes if _is_selected(spec, node))


def _is_selected(spec: ModelCacheSpec, node: Mapping[str, Any]) -> bool:
    if not spec.node_selector.items() <= labels_of(node).items():
        return False
    taints = (node.get("spec") or {}).get("taints") or []
    return all(
        taint["key"].startswith(TRANSIENT_TAINT_PREFIX)
        or taint.get("effect") not in HARD_EFFECTS
        or any(tolerates(toleration.to_api(), taint) for toleration in spec.tolerations)
        for taint in taints
    )
