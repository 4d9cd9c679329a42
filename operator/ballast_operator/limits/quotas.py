"""Limits for the pods of all services of one namespace together: an option of the operator. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ballast_operator.names import ANNOTATION_CLAIMED_GPUS
from ballast_operator.pod_requests import pod_requests
from ballast_operator.quantity import parse_count

KEYS = ("pods", "cpus", "gpus", "memory")
ANY_NAMESPACE = "*"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits by namespace; those of ANY_NAMESPACE hold for each namespace that has none of its own."""

    by_namespace: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Quantities as they were written, by one of KEYS."""

    def of(self, namespace: str) -> Mapping[str, str]:
        """The limits of one namespace; empty if it has none."""
        return self.by_namespace.get(namespace, self.by_namespace.get(ANY_NAMESPACE, {}))


def why_over_quota(limits: Mapping[str, str], live: Iterable[Mapping[str, Any]], pod: Mapping[str, Any]) -> str | None:
    """The limits that this pod would exceed together with the live ones; None if it fits."""
    requested, used = usage(pod), dict.fromkeys(KEYS, Decimal(0))
    for other in live:
        for key, amount in usage(other).items():
            used[key] += amount
    over = [
        f"{key}: {_text(key, used[key])} of {limit} are used and the pod requests {_text(key, requested[key])}"
        for key, limit in limits.items()
        if requested[key] and used[key] + requested[key] > parse_count(limit)
    ]
    return "; ".join(over) or None


def usage(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """The amounts that one pod takes. A claim of devices counts as the GPUs that its service declares, or as one."""
    spec = pod["spec"]
    claimed = str((pod["metadata"].get("annotations") or {}).get(ANNOTATION_CLAIMED_GPUS, ""))
    claims = len(spec.get("resourceClaims") or ())
    found = {
        **dict.fromkeys(KEYS, Decimal(0)),
        "pods": Decimal(1),
        "gpus": Decimal(max(claims, int(claimed)) if claims and claimed.isdecimal() else claims),
    }
    for name, amount in pod_requests(spec).items():
        if (key := _key_of(name)) is not None:
            found[key] += amount
    return found


def _key_of(resource: str) -> str | None:
    """Huge pages are memory. Devices have names with a domain."""
    if resource == "memory" or resource.startswith("hugepages-"):
        return "memory"
    return "cpus" if resource == "cpu" else "gpus" if "/" in resource else None


def _text(key: str, amount: Decimal) -> str:
    return f"{amount / 2**30:.1f}Gi" if key == "memory" else f"{amount.normalize():f}"
