"""The history of a service's specs, as ControllerRevisions: which one is missing, and which are too old. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import ANNOTATION_SPEC_HASH
from ballast_operator.resources.meta import child_metadata
from ballast_operator.spec_hash import short_hash, spec_hash

HISTORY_LIMIT = 10
NOT_IN_HISTORY = frozenset({"replicas", "rollout"})
"""Fields that autoscalers and operators of a rollout change, and that an undo keeps as they are."""


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """The writes after which the newest revision is the present spec."""

    delete: tuple[Mapping[str, Any], ...] = ()
    create: dict[str, Any] | None = None
    """To be created after the others are deleted: a revision whose spec came back is created again."""


def kept_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec that a revision holds."""
    return {name: value for name, value in spec.items() if name not in NOT_IN_HISTORY}


def revision_name(service: InferenceService, spec: Mapping[str, Any]) -> str:
    """The name of the revision that holds this spec."""
    return f"{service.ref.name}-{short_hash(kept_spec(spec))}"


def plan_history(service: InferenceService, spec: Mapping[str, Any], live: Sequence[Mapping[str, Any]]) -> HistoryStep:
    """The step for the present `spec`. `live`: the service's revisions."""
    name = revision_name(service, spec)
    numbers = {revision["metadata"]["name"]: int(revision["revision"]) for revision in live}
    newest = max(numbers.values(), default=0)
    oldest_first = sorted(live, key=lambda revision: int(revision["revision"]))
    others = [revision for revision in oldest_first if revision["metadata"]["name"] != name]
    delete = tuple(others[: max(0, len(others) + 1 - HISTORY_LIMIT)])
    if name in numbers and numbers[name] == newest:
        return HistoryStep(delete)
    # A patch of the number would write the data in another order, and the API server refuses other data.
    same = tuple(revision for revision in live if revision["metadata"]["name"] == name)
    return HistoryStep((*delete, *same), _revision(service, spec, newest + 1))


def _revision(service: InferenceService, spec: Mapping[str, Any], number: int) -> dict[str, Any]:
    metadata = child_metadata(service, revision_name(service, spec))
    metadata["annotations"] = {ANNOTATION_SPEC_HASH: spec_hash(service.spec)}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata,
        "revision": number,
        "data": {"spec": kept_spec(spec)},
    }
