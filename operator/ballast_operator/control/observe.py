"""Reads what is there of one service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import CONFIG_MAP, POD, Kind
from ballast_operator.control.ownership import is_ours, is_predecessors
from ballast_operator.control.pods import Pod
from ballast_operator.names import pod_selector, selector_text
from ballast_operator.resources.configmap import rules_name
from ballast_operator.resources.pod import parse_pod_name


@dataclass(frozen=True, slots=True)
class Observed:
    """What lies under the names of the service's children, ours or not, and the pods that are ours."""

    children: Mapping[tuple[Kind, str], dict[str, Any]]
    pods: tuple[Pod, ...]
    predecessors: tuple[Pod, ...] = ()
    """Pods that a deleted service of the same name has left."""
    strangers: tuple[Pod, ...] = ()
    """Pods that have names of ours and belong to nobody or to somebody else."""
    unread: Mapping[tuple[Kind, str], ApiError] = field(default_factory=dict)
    """Children of which it is not known whether they are there."""


async def observe(api: Api, service: InferenceService, kinds: Sequence[Kind]) -> Observed:
    """Read live, never from a cache: what is decided from this is written at once. `kinds`: of children beside pods.

    Raises ApiError where the pods cannot be read: then nothing can be decided."""
    namespace = service.ref.namespace
    names = [rules_name(service) if kind is CONFIG_MAP else service.ref.name for kind in kinds]
    pods, *found = await asyncio.gather(
        _list_pods(api, service),
        *(_read(api, kind, namespace, name) for kind, name in zip(kinds, names, strict=True)),
    )
    ours, predecessors, strangers = sort_pods(service, pods if isinstance(pods, list) else [])
    answers = dict(zip(zip(kinds, names, strict=True), found, strict=True))
    return Observed(
        children={key: live for key, live in answers.items() if isinstance(live, dict)},
        unread={key: error for key, error in answers.items() if isinstance(error, ApiError)},
        pods=ours,
        predecessors=predecessors,
        strangers=strangers,
    )


async def _read(api: Api, kind: Kind, namespace: str, name: str) -> dict[str, Any] | ApiError | None:
    try:
        return await api.get(kind, namespace, name)
    except ApiError as error:
        return error


def sort_pods(
    service: InferenceService, bodies: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Pod, ...], tuple[Pod, ...], tuple[Pod, ...]]:
    """Those of the bodies that have names of the service's pods: its own, its predecessors' and strangers'."""
    ours: list[Pod] = []
    predecessors: list[Pod] = []
    strangers: list[Pod] = []
    for body in bodies:
        named = parse_pod_name(body["metadata"]["name"])
        if named is None or named[0] != service.ref.name:
            continue
        if is_ours(body, service.uid):
            ours.append(Pod.from_api(body))
        elif is_predecessors(body, service):
            predecessors.append(Pod.from_api(body))
        else:
            strangers.append(Pod.from_api(body))
    return tuple(ours), tuple(predecessors), tuple(strangers)


async def _list_pods(api: Api, service: InferenceService) -> list[dict[str, Any]]:
    """Those with the service's labels; all of the namespace where a replica has none, because a pod that lost its
    labels may still hold the memory that the next would need."""
    namespace = service.ref.namespace
    labelled = await api.list_all(POD, namespace, selector_text(pod_selector(service.ref.name))) or []
    ours, _, _ = sort_pods(service, labelled)
    alive = {pod.replica for pod in ours if not pod.over}
    if alive.issuperset(range(service.spec.replicas)):
        return labelled
    return await api.list_all(POD, namespace) or []
