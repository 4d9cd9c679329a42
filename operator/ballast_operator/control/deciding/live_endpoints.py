"""The pods that clients reach through a Service, and the addresses of its load balancer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.control.deciding.live_pod import Pod


def pods_behind(slices: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The uids of the pods that the slices name as ready."""
    found = set()
    for body in slices:
        for endpoint in body.get("endpoints") or []:
            target = endpoint.get("targetRef") or {}
            # The API defines an endpoint without conditions as ready.
            if target.get("uid") and (endpoint.get("conditions") or {}).get("ready", True) is not False:
                found.add(str(target["uid"]))
    return frozenset(found)


def why_not_behind(pods: Iterable[Pod], behind: frozenset[str]) -> str | None:
    """Message about ready pods that no client reaches through the Service; None if all are reached."""
    missing = [pod.name for pod in pods if pod.uid not in behind]
    if not missing:
        return None
    return f"{', '.join(missing)}: ready, but not an endpoint of the Service"


def load_balancer_addresses(service: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The IP addresses or host names of a Service's load balancer; empty without one."""
    balancer = ((service or {}).get("status") or {}).get("loadBalancer") or {}
    found = [point.get("hostname") or point.get("ip") for point in balancer.get("ingress") or ()]
    return tuple(str(address) for address in found if address)
