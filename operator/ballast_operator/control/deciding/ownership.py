"""Determines the owner of an object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import GROUP, KIND, LABEL_OWNER_UID, LABEL_SERVICE, labels_of


def is_ours(live: Mapping[str, Any], service: InferenceService) -> bool:
    """Whether the object belongs to this service. If the owner was removed, the labels decide.

    Objects that a deletion with `--cascade=orphan` of a service with this name left behind have no owner either. This
    service adopts them.
    """
    controller = controller_of(live)
    if controller is not None:
        return bool(controller.get("uid") == service.uid)
    labels = labels_of(live)
    owner = labels.get(LABEL_OWNER_UID)
    return owner == service.uid or (owner is not None and labels.get(LABEL_SERVICE) == service.ref.name)


def has_earlier_owner(live: Mapping[str, Any], service: InferenceService) -> bool:
    """Whether the object belongs to a service of the same name that was deleted before this one was created."""
    controller = controller_of(live)
    if controller is None or not is_service(controller):
        return False
    return bool(controller["name"] == service.ref.name and controller.get("uid") != service.uid)


def is_service(owner: Mapping[str, Any]) -> bool:
    """Whether an owner reference names an InferenceService of Ballast; other projects have a kind of this name too."""
    return bool(owner.get("kind") == KIND and str(owner.get("apiVersion")).partition("/")[0] == GROUP)


def controller_of(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference of the object's controller."""
    owners: list[Mapping[str, Any]] = live["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def conflict(live: Mapping[str, Any], service: InferenceService) -> str:
    """The message about an object that has a child's name but belongs to something else."""
    name = f"{live['kind']} {live['metadata']['name']}"
    controller = controller_of(live)
    if controller is None:
        whose = "it has no owner"
    elif has_earlier_owner(live, service):
        whose = f"it belongs to an earlier {KIND} {controller['name']}, and the operator waits for its end"
    else:
        group = str(controller.get("apiVersion", "")).rpartition("/")[0]
        whose = f"it belongs to {controller['kind']} {controller['name']}{f' of {group}' if group else ''}"
    return f"{name} already exists and is not this service's: {whose}; the operator does not change it"


def waits_for_finalizers(live: Mapping[str, Any]) -> str:
    """The message about an object of the service that is being deleted and still exists."""
    metadata = live["metadata"]
    held = ", ".join(metadata.get("finalizers") or ()) or "its end"
    return f"{live['kind']} {metadata['name']} is being deleted and waits for {held}; it is created again afterwards"
