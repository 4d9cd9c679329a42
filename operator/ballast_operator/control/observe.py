"""Reads what is there of one service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.api.service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import CONFIG_MAP, POD, Kind
from ballast_operator.control.ownership import is_ours
from ballast_operator.control.pods import Pod
from ballast_operator.names import pod_selector, selector_text
from ballast_operator.resources.configmap import rules_name


@dataclass(frozen=True, slots=True)
class Observed:
    """What lies under the names of the service's children, ours or not, and the pods that are ours."""

    children: Mapping[tuple[Kind, str], dict[str, Any]]
    pods: tuple[Pod, ...]
    unread: Mapping[tuple[Kind, str], ApiError] = field(default_factory=dict)
    """Children of which it is not known whether they are there."""


async def observe(api: Api, service: InferenceService, kinds: Sequence[Kind]) -> Observed:
    """Read live, never from a cache: what is decided from this is written at once. `kinds`: of children beside pods.

    Raises ApiError where the pods cannot be read: then nothing can be decided."""
    namespace = service.ref.namespace
    names = [rules_name(service) if kind is CONFIG_MAP else service.ref.name for kind in kinds]
    pods, *found = await asyncio.gather(
        api.list_all(POD, namespace, selector_text(pod_selector(service.ref.name))),
        *(_read(api, kind, namespace, name) for kind, name in zip(kinds, names, strict=True)),
    )
    answers = dict(zip(zip(kinds, names, strict=True), found, strict=True))
    return Observed(
        children={key: live for key, live in answers.items() if isinstance(live, dict)},
        unread={key: error for key, error in answers.items() if isinstance(error, ApiError)},
        pods=tuple(Pod.from_api(body) for body in pods or [] if isinstance(body, dict) and is_ours(body, service.uid)),
    )


async def _read(api: Api, kind: Kind, namespace: str, name: str) -> dict[str, Any] | ApiError | None:
    try:
        return await api.get(kind, namespace, name)
    except ApiError as error:
        return error
