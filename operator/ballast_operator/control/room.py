"""Whether a pod fits into one NUMA node anywhere, as far as NodeResourceTopology objects tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.quantity import parse_count


def why_no_room(
    spec: InferenceServiceSpec, topologies: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> str | None:
    """The sentence that says that nothing fits, None when something does or nobody knows.

    Something might fit as long as one node that the selector allows has no object of its name, or one that leaves out
    a resource that the node has.
    """
    if spec.numa.policy != "SingleNode":
        return None
    asked = _asked(spec)
    told = {topology["metadata"]["name"]: _zones(topology) for topology in topologies}
    closest: list[tuple[int, str]] = []
    for node in nodes:
        if not spec.scheduling.node_selector.items() <= (node["metadata"].get("labels") or {}).items():
            continue
        name = node["metadata"]["name"]
        zones = told.get(name, {})
        named = set().union(*zones.values())
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        if not zones or any(resource not in named and resource in allocatable for resource in asked):
            return None
        for zone, free in zones.items():
            short = _short(asked, free)
            if not short:
                return None
            closest.append((len(short), f"{name} {zone} lacks {', '.join(short)}"))
    if not closest:
        return None
    wanted = ", ".join(f"{text} {name}" for name, text in asked.items())
    return f"no NUMA node has {wanted} free; closest: {min(closest)[1]} (free of asked)"


def _zones(topology: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What is free on each NUMA node."""
    return {
        zone["name"]: {item["name"]: item["available"] for item in zone.get("resources") or []}
        for zone in topology.get("zones") or []
        if zone.get("type") == "Node"
    }


def _short(asked: Mapping[str, str], free: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {free.get(name, '0')} of {text}"
        for name, text in asked.items()
        if parse_count(free.get(name, "0")) < parse_count(text)
    ]


def _asked(spec: InferenceServiceSpec) -> dict[str, str]:
    asked = {"cpu": str(spec.resources.cpus), "memory": spec.resources.memory}
    if spec.resources.gpus:
        asked[spec.resources.gpu_resource_name] = str(spec.resources.gpus)
    if spec.resources.hugepages1_gi:
        asked["hugepages-1Gi"] = f"{spec.resources.hugepages1_gi}Gi"
    return asked
