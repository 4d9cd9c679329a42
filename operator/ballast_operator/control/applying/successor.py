"""Checks that the successor of a serving pod can start, before that pod is stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import CLAIM, NODE, POD, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from ballast_operator.control.applying.outcome import REFUSED, Outcome
from ballast_operator.control.deciding.image_check import check_result, unproved_images
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.deciding.node_match import why_no_node
from ballast_operator.control.deciding.ownership import is_ours
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.state import ServiceState
from ballast_operator.resources.image_check import ANNOTATION_CHECKED, build_image_check, image_check_name

log = logging.getLogger(__name__)


async def why_not_startable(
    api: Api,
    service: InferenceService,
    successor: Mapping[str, Any],
    pods: Sequence[Pod],
    state: ServiceState,
    outcome: Outcome,
) -> Finding | None:
    """The reason why the successor could not start, or why this is unknown; None if there is none.

    Objects that may not be read are no reason.
    """
    if (why := await _why_no_node(api, service, successor)) is not None:
        return Finding("False", "NoNodeMatches", why)
    if (why := await _missing_claim(api, service, successor)) is not None:
        return Finding("False", "ClaimMissing", why)
    images = unproved_images(successor, pods)
    if not images:
        return None
    state.checks_images = True
    try:
        found = await _check_images(api, service, build_image_check(service, successor, images))
    except NamespaceEndsError:
        raise
    except ApiError as error:
        if error.status in REFUSED:  # a quota or a policy rejects the check: not checked
            log.warning("images cannot be checked", extra={"service": str(service.ref), "error": str(error)})
            return None
        outcome.errors.append(error)
        return Finding("False", "CheckingImage", f"the API server did not answer: {error.message}")
    return None if found is None else Finding("False", *found)


async def why_unplaced(
    api: Api, service: InferenceService, pods: Sequence[Pod], state: ServiceState, nodes_changed: float | None
) -> str | None:
    """The reason why no node could run the first pod that the scheduler cannot place, even without other pods; None if
    one could, or if this is unknown. Nodes are read again after they have changed."""
    pod = next((pod for pod in pods if pod.unschedulable is not None), None)
    if pod is None:
        return None
    asked = pod.uid, nodes_changed
    if state.unplaced is None or state.unplaced[0] != asked:
        state.unplaced = asked, await _why_no_node(api, service, pod.body)
    return state.unplaced[1]


async def end_image_check(api: Api, service: InferenceService, state: ServiceState, outcome: Outcome) -> None:
    """Delete the pod that checks images, if there may be one."""
    if not state.checks_images:
        return
    try:
        live = await api.get(POD, service.ref.namespace, image_check_name(service))
        if live is not None and is_ours(live, service):
            await api.delete(POD, live)
    except ApiError as error:
        outcome.failed(f"to delete Pod {image_check_name(service)}", error, optional=True)
        return
    state.checks_images = False


async def _why_no_node(api: Api, service: InferenceService, pod: Mapping[str, Any]) -> str | None:
    try:
        nodes = await api.list_all(NODE)
    except ApiError as error:
        log.warning("the nodes cannot be read", extra={"service": str(service.ref), "error": str(error)})
        return None
    return why_no_node(pod, nodes) if nodes else None


async def _missing_claim(api: Api, service: InferenceService, successor: Mapping[str, Any]) -> str | None:
    for kind, name in _claims(successor):
        try:
            if kind.optional and not await api.knows(kind):
                continue
            live = await api.get(kind, service.ref.namespace, name)
        except ApiError as error:
            log.warning("a claim cannot be read", extra={"service": str(service.ref), "error": str(error)})
            continue
        if live is None:
            return f"{kind.name} {name} does not exist"
        if "deletionTimestamp" in live["metadata"]:
            return f"{kind.name} {name} is being deleted"
        if (live.get("status") or {}).get("phase") == "Lost":
            return f"{kind.name} {name} has lost its volume"
    return None


def _claims(pod: Mapping[str, Any]) -> list[tuple[Kind, str]]:
    """The claims that must exist for the pod to start."""
    volumes = pod["spec"].get("volumes") or []
    found = [(CLAIM, it["persistentVolumeClaim"]["claimName"]) for it in volumes if "persistentVolumeClaim" in it]
    for claim in pod["spec"].get("resourceClaims") or []:
        if "resourceClaimName" in claim:
            found.append((RESOURCE_CLAIM, claim["resourceClaimName"]))
        else:
            found.append((RESOURCE_CLAIM_TEMPLATE, claim["resourceClaimTemplateName"]))
    return found


async def _check_images(api: Api, service: InferenceService, want: dict[str, Any]) -> tuple[str, str] | None:
    """Reason and message if the images are not proved to be available; None if they are. Raises ApiError."""
    name, namespace = want["metadata"]["name"], service.ref.namespace
    live = await api.get(POD, namespace, name)
    if live is None:
        await api.create(POD, want, namespace)
        log.info("checking images", extra={"pod": name, "service": str(service.ref)})
        return "CheckingImage", f"{name} is being started"
    if not is_ours(live, service):
        return None  # a foreign pod has the name: not checked
    made_from = (live["metadata"].get("annotations") or {}).get(ANNOTATION_CHECKED)
    if made_from != want["metadata"]["annotations"][ANNOTATION_CHECKED]:
        await api.delete(POD, live)
        return "CheckingImage", f"{name} of an earlier spec is being deleted"
    return check_result(live)
