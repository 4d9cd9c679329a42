"""Finds the images to check before a serving pod is replaced, and evaluates a check. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.waiting_reasons import PULL_FAILURES, STARTING
from ballast_operator.resources.image_check import images_of


def unproved_images(successor: Mapping[str, Any], pods: Sequence[Pod]) -> list[tuple[str, str]]:
    """The successor's images, with their pull policies, that no running pod of the service has."""
    known = {image for pod in pods if pod.has_served and not pod.over for image, _ in images_of(pod.body)}
    return [(image, policy) for image, policy in images_of(successor) if image not in known]


def check_result(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Reason and message if the images are not proved to be available; None if they are.

    A pod that ended without a word about its images proves nothing against them.
    """
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return None
    if "deletionTimestamp" in pod["metadata"]:
        return "CheckingImage", f"{name}: ends before the next check"
    waiting = [(one.get("state") or {}).get("waiting") for one in status.get("containerStatuses") or []]
    for state in filter(None, waiting):
        if state.get("reason", "") in PULL_FAILURES:
            return "ImagePullFailed", f"{name}: {state.get('message') or state['reason']}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "Unschedulable", f"{name}: {condition.get('message', '')}"
    if not waiting or any(state and state.get("reason", "") in STARTING for state in waiting):
        return "CheckingImage", f"{name} pulls {', '.join(image for image, _ in images_of(pod))}"
    return None
