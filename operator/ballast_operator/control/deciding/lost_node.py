"""Checks whether a pod's node no longer reports, and since when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.control.deciding.live_pod import Pod


def doubtful_nodes(pods: Sequence[Pod], loading: frozenset[str]) -> list[str]:
    """The nodes of pods that terminate, or are not ready and do not answer. `loading`: uids of pods that answer."""
    doubted = [
        pod.node
        for pod in pods
        if pod.node is not None
        and not pod.over
        and (pod.terminating or (pod.running and not pod.ready and pod.uid not in loading))
    ]
    return sorted(set(doubted))


def why_lost(name: str, node: Mapping[str, Any] | None) -> str | None:
    """The node's fault; None while its kubelet reports. `node`: its object, None if it is deleted."""
    if node is None:
        return f"node {name} no longer exists"
    conditions = (node.get("status") or {}).get("conditions") or []
    ready: Mapping[str, Any] = next((found for found in conditions if found["type"] == "Ready"), {})
    if ready.get("status") == "True":
        return None
    stated = ", ".join(part for part in (ready.get("reason"), ready.get("message")) if part)
    return f"node {name} is not ready since {ready.get('lastTransitionTime', 'its creation')} ({stated or 'no report'})"
