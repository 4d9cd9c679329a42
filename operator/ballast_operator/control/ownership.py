"""Whose an object is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.names import KIND, LABEL_OWNER_UID


def is_ours(live: Mapping[str, Any], uid: str) -> bool:
    """Whether the object belongs to the service with this uid. The label stands in where somebody removed the owner."""
    controller = controller_of(live)
    if controller is not None:
        return bool(controller.get("uid") == uid)
    return bool((live["metadata"].get("labels") or {}).get(LABEL_OWNER_UID) == uid)


def controller_of(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner that controls it."""
    owners: list[Mapping[str, Any]] = live["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def conflict(live: Mapping[str, Any]) -> str:
    """The sentence about an object that has a child's name and is not ours."""
    name = f"{live['kind']} {live['metadata']['name']}"
    controller = controller_of(live)
    if controller is None:
        whose = "it has no owner"
    elif controller["kind"] == KIND:
        whose = f"it belongs to an earlier {KIND} {controller['name']} and is waited for"
    else:
        whose = f"it belongs to {controller['kind']} {controller['name']}"
    return f"{name} exists already and is not this service's: {whose}; it is left alone"
