"""Whether a pod fits into one NUMA node anywhere, as far as NodeResourceTopology objects tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.quantity import parse_count


def why_no_room(spec: InferenceServiceSpec, topologies: Sequence[Mapping[str, Any]]) -> str | None:
    """The sentence that says that nothing fits, None when something does or nobody knows."""
    if spec.numa.policy != "SingleNode" or not topologies:
        return None
    asked = _asked(spec)
    best: tuple[int, str] | None = None
    for topology in topologies:
        for zone in topology.get("zones") or []:
            if zone.get("type") != "Node":
                continue
            free = {item["name"]: item["available"] for item in zone.get("resources") or []}
            short = [
                f"{name} {free.get(name, '0')} of {text}"
                for name, text in asked.items()
                if parse_count(free.get(name, "0")) < parse_count(text)
            ]
            if not short:
                return None
            story = f"{topology['metadata']['name']} {zone.get('name', '')} lacks {', '.join(short)}"
            best = min(best or (len(short), story), (len(short), story))
    if best is None:
        return None
    wanted = ", ".join(f"{text} {name}" for name, text in asked.items())
    return f"no NUMA node has {wanted} free; closest: {best[1]} (free of asked)"


def _asked(spec: InferenceServiceSpec) -> dict[str, str]:
    asked = {"cpu": str(spec.resources.cpus), "memory": spec.resources.memory}
    if spec.resources.gpus:
        asked[spec.resources.gpu_resource_name] = str(spec.resources.gpus)
    if spec.resources.hugepages1_gi:
        asked["hugepages-1Gi"] = f"{spec.resources.hugepages1_gi}Gi"
    return asked
