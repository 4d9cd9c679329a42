"""The resources that a pod takes of its node, as Kubernetes counts them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ballast_operator.quantity import parse_count


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """By resource: the containers together with the sidecars, or more if an init container needs it, and the overhead
    of the runtime class. `spec`: of the pod."""
    running: defaultdict[str, Decimal] = defaultdict(Decimal)
    peak: defaultdict[str, Decimal] = defaultdict(Decimal)
    for container in spec.get("initContainers") or []:
        requested = _requests(container)
        if container.get("restartPolicy") == "Always":
            for name, amount in requested.items():
                running[name] += amount
        else:
            for name, amount in requested.items():
                peak[name] = max(peak[name], running[name] + amount)
    for container in spec.get("containers") or []:
        for name, amount in _requests(container).items():
            running[name] += amount
    overhead = _quantities(spec.get("overhead"))
    names = running.keys() | peak.keys() | overhead.keys()
    return {name: max(running[name], peak[name]) + overhead.get(name, Decimal(0)) for name in sorted(names)}


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    return _quantities((container.get("resources") or {}).get("requests"))


def _quantities(texts: Mapping[str, Any] | None) -> dict[str, Decimal]:
    return {name: parse_count(str(amount)) for name, amount in (texts or {}).items()}
