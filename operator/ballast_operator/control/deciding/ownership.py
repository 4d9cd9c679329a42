"""Tells whose an object is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import KIND, LABEL_OWNER_UID, LABEL_SERVICE, labels_of


def is_ours(live: Mapping[str, Any], uid: str) -> bool:
    """Whether the object belongs to the service with this uid. The label decides where somebody removed the owner."""
    controller = controller_of(live)
    if controller is not None:
        return bool(controller.get("uid") == uid)
    return bool(labels_of(live).get(LABEL_OWNER_UID) == uid)


def has_earlier_owner(live: Mapping[str, Any], service: InferenceService) -> bool:
    """Whether the object belongs to a service of the same name that was deleted before this one was made."""
    controller = controller_of(live)
    if controller is not None:
        same = controller["kind"] == KIND and controller["name"] == service.ref.name
        return bool(same and controller.get("uid") != service.uid)
    labels = labels_of(live)
    named, owner = labels.get(LABEL_SERVICE) == service.ref.name, labels.get(LABEL_OWNER_UID)
    return named and owner is not None and owner != service.uid


def controller_of(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference of the object's controller."""
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
