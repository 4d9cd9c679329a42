"""Keeps the history of a service's specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import REVISION
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.control.deciding.ownership import is_ours
from ballast_operator.control.deciding.revisions import plan_history, revision_name
from ballast_operator.control.state import ServiceState
from ballast_operator.names import pod_selector, selector_text


async def record_revision(
    api: Api, service: InferenceService, spec: Mapping[str, Any], state: ServiceState, outcome: Outcome
) -> None:
    """Write the current spec to the history, once per change."""
    name, namespace = revision_name(service, spec), service.ref.namespace
    if state.revision == name:
        return
    try:
        found = await api.list_all(REVISION, namespace, selector_text(pod_selector(service.ref.name)))
        step = plan_history(service, spec, [body for body in found or () if is_ours(body, service)])
        for body in step.delete:
            await api.delete(REVISION, body)
        if step.create is not None:
            # Applied, not created: the API server then stores the data as it writes JSON itself. In any other form, the
            # garbage collector could not orphan the revision, since a patch would change the bytes of the data.
            await api.apply(REVISION, step.create)
    except ApiError as error:
        outcome.failed("the history of the spec", error, optional=True)
        return
    state.revision = name
