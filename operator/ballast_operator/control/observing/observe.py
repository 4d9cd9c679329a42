"""Reads the objects of one service from the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import CONFIG_MAP, ENDPOINT_SLICE, POD, Kind
from ballast_operator.control.deciding.live_endpoints import pods_behind
from ballast_operator.control.deciding.live_pod import Pod, with_current_hash
from ballast_operator.control.deciding.ownership import controller_of, has_earlier_owner, is_ours
from ballast_operator.names import LABEL_OF_SLICES, Ref, pod_selector, selector_text
from ballast_operator.resources.configmap import rules_name
from ballast_operator.resources.pod import parse_pod_name


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects under the names of the service's children, ours or not, and the pods under its replicas' names."""

    children: Mapping[tuple[Kind, str], dict[str, Any]]
    pods: tuple[Pod, ...]
    earlier_owner_pods: tuple[Pod, ...] = ()
    """Pods of a deleted service of the same name."""
    foreign_pods: tuple[Pod, ...] = ()
    """Pods with the name of a replica that have no owner or another one."""
    slices: tuple[Mapping[str, Any], ...] | ApiError = ()
    """The Service's EndpointSlices, or the error of reading them."""
    unread: Mapping[tuple[Kind, str], ApiError] = field(default_factory=dict)
    """Children that could not be read, each with the error."""
    read_at: float = 0.0
    """The loop time before the pods were read."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """The service's status, which the last pass wrote."""

    def misses_owner(self, service: InferenceService) -> bool:
        """Whether an object of the service has no owner: a user or the garbage collector removed it."""
        bodies = (*self.children.values(), *(pod.body for pod in self.pods))
        return any(controller_of(body) is None and is_ours(body, service) for body in bodies)


async def observe(api: Api, service: InferenceService, kinds: Sequence[Kind]) -> Observed:
    """Read the service's objects, never from a cache, because decisions are written immediately.

    `kinds`: the kinds of children other than pods. Raises ApiError if the pods cannot be read, because then nothing can
    be decided.
    """
    namespace = service.ref.namespace
    names = [rules_name(service) if kind is CONFIG_MAP else service.ref.name for kind in kinds]
    pods, slices, *found = await asyncio.gather(
        _list_pods(api, service),
        _list_slices(api, service.ref),
        *(_read(api, kind, namespace, name) for kind, name in zip(kinds, names, strict=True)),
    )
    ours, earlier_owner_pods, foreign_pods = sort_pods(service, pods)
    answers: dict[tuple[Kind, str], Any] = dict(zip(zip(kinds, names, strict=True), found, strict=True))
    return Observed(
        children={key: live for key, live in answers.items() if isinstance(live, dict)},
        unread={key: error for key, error in answers.items() if isinstance(error, ApiError)},
        pods=ours,
        slices=slices,
        earlier_owner_pods=earlier_owner_pods,
        foreign_pods=foreign_pods,
    )


async def observe_pods(api: Api, ref: Ref, uid: str) -> tuple[tuple[Pod, ...], frozenset[str] | None]:
    """The pods of a service whose spec may be invalid, and the endpoints of its Service, as in Evidence.

    Raises ApiError if the pods cannot be read.
    """
    bodies, slices = await asyncio.gather(
        api.list_all(POD, ref.namespace, selector_text(pod_selector(ref.name))), _list_slices(api, ref)
    )
    ours = [body for body in bodies or () if (controller_of(body) or {"uid": uid})["uid"] == uid]
    return tuple(map(Pod.from_api, ours)), None if isinstance(slices, ApiError) else pods_behind(slices)


async def _list_slices(api: Api, ref: Ref) -> tuple[Mapping[str, Any], ...] | ApiError:
    try:
        return tuple(await api.list_all(ENDPOINT_SLICE, ref.namespace, f"{LABEL_OF_SLICES}={ref.name}") or ())
    except ApiError as error:
        return error


async def _read(api: Api, kind: Kind, namespace: str, name: str) -> dict[str, Any] | ApiError | None:
    try:
        return await api.get(kind, namespace, name)
    except ApiError as error:
        return error


def sort_pods(
    service: InferenceService, bodies: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Pod, ...], tuple[Pod, ...], tuple[Pod, ...]]:
    """The pods that have names of the service's replicas: its own, those of an earlier owner, and foreign ones.

    Other bodies are left out. An earlier owner is a deleted service of the same name.
    """
    ours: list[Pod] = []
    earlier_owner_pods: list[Pod] = []
    foreign_pods: list[Pod] = []
    for body in bodies:
        named = parse_pod_name(body["metadata"]["name"])
        if named is None or named[0] != service.ref.name:
            continue
        if is_ours(body, service):
            ours.append(with_current_hash(service, Pod.from_api(body)))
        elif has_earlier_owner(body, service):
            earlier_owner_pods.append(Pod.from_api(body))
        else:
            foreign_pods.append(Pod.from_api(body))
    return tuple(ours), tuple(earlier_owner_pods), tuple(foreign_pods)


async def _list_pods(api: Api, service: InferenceService) -> list[dict[str, Any]]:
    """The pods with the service's labels, or all pods of the namespace while a replica seems to have none.

    A pod that lost its labels may still hold the memory that the replica's next pod would need.
    """
    namespace = service.ref.namespace
    labelled = await api.list_all(POD, namespace, selector_text(pod_selector(service.ref.name))) or []
    ours, _, _ = sort_pods(service, labelled)
    alive = {pod.replica for pod in ours if not pod.over}
    if alive.issuperset(range(service.spec.replicas)):
        return labelled
    return await api.list_all(POD, namespace) or []
