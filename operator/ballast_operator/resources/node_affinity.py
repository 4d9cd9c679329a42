"""Affinity that restricts a pod to certain nodes, in addition to the affinity of its spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def on_nodes(affinity: Mapping[str, Any] | None, nodes: Sequence[str] | None) -> dict[str, Any] | None:
    """The affinity with the condition that the node is one of `nodes`; no condition if `nodes` is None.

    Terms are alternatives, so each term of the spec is combined with each node. A term can contain one node name.
    """
    if nodes is None:
        return None if affinity is None else dict(affinity)
    changed = dict(affinity or {})
    try:
        of_nodes = dict(changed.get("nodeAffinity") or {})
        terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        named = [
            {**term, "matchFields": [*(term.get("matchFields") or ()), _is(node)]} for term in terms for node in nodes
        ]
    except (AttributeError, TypeError, ValueError):  # not an affinity: the API server rejects the pod
        return changed
    return {**changed, "nodeAffinity": {**of_nodes, REQUIRED: {"nodeSelectorTerms": named}}}


def admitted_nodes(affinity: Mapping[str, Any] | None) -> set[str]:
    """The nodes that `on_nodes` restricted a pod to."""
    of_nodes = (affinity or {}).get("nodeAffinity") or {}
    return {
        name
        for term in (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
        for field in term.get("matchFields") or ()
        for name in field.get("values") or ()
    }


def _is(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}
