"""Checks whether any NUMA node has free capacity for a pod, according to NodeResourceTopology objects. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.names import labels_of
from ballast_operator.quantity import parse_count
from ballast_operator.resources.pod import requested_resources


def why_no_capacity(
    spec: InferenceServiceSpec, topologies: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> str | None:
    """The reason why no NUMA node has room for the pod; None if one has, or if this is unknown.

    It is not known as long as a node that the selector allows has no topology object, or one that leaves out a resource
    that the node has.
    """
    if spec.numa.policy != "SingleNode":
        return None
    requests = requested_resources(spec)
    zones_by_node = {topology["metadata"]["name"]: _zones(topology) for topology in topologies}
    closest: list[tuple[int, str]] = []
    divided: list[str] = []
    for node in nodes:
        if not spec.scheduling.node_selector.items() <= labels_of(node).items():
            continue
        name = node["metadata"]["name"]
        zones = zones_by_node.get(name, {})
        named = set().union(*zones.values())
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        if not zones or any(resource not in named and resource in allocatable for resource in requests):
            return None
        for zone, free in zones.items():
            short = _short(requests, free)
            if not short:
                return None
            closest.append((len(short), f"{name} {zone} lacks {', '.join(short)}"))
        if not _short(requests, _sum(zones.values())):
            divided.append(name)
    if not closest:
        return None
    requested = ", ".join(f"{text} {name}" for name, text in requests.items())
    several = f"; {divided[0]} has it on several, which numa.policy AllNodes allows" if divided else ""
    return f"no NUMA node has {requested} free; closest: {min(closest)[1]} (free of requested){several}"


def _zones(topology: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The free resources of each NUMA node, by its name."""
    return {
        zone["name"]: {item["name"]: item["available"] for item in zone.get("resources") or []}
        for zone in topology.get("zones") or []
        if zone.get("type") == "Node"
    }


def _sum(zones: Iterable[Mapping[str, str]]) -> dict[str, str]:
    total: defaultdict[str, Decimal] = defaultdict(Decimal)
    for free in zones:
        for name, amount in free.items():
            total[name] += parse_count(amount)
    return {name: f"{amount:f}" for name, amount in total.items()}


def _short(requests: Mapping[str, str], free: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {free.get(name, '0')} of {text}"
        for name, text in requests.items()
        if parse_count(free.get(name, "0")) < parse_count(text)
    ]
