"""kopf's watches. A handler only passes on what changed; kopf writes nothing to any object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import kopf

from ballast_operator.cluster.kinds import CHILD_KINDS, ENDPOINT_SLICE, POD, Kind
from ballast_operator.names import MANAGED_SELECTOR
from ballast_operator.process.login import Backoffs, Login

EventCallback = Callable[[Kind, Mapping[str, Any], bool], None]
"""Called with the kind, the object, and whether it was deleted."""


def make_registry(on_event: EventCallback, kinds: Iterable[Kind]) -> kopf.OperatorRegistry:
    """Handlers that call `on_event` for every change of an object of these kinds."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(Login(time.monotonic).__call__)
    for kind in kinds:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"watch-{kind.plural}")(
            _handler(kind, on_event)
        )
    return registry


def make_settings() -> kopf.OperatorSettings:
    """kopf's settings: it posts no events, scans no kinds, and has a limit on every wait."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = None  # else kopf kills the process when it shuts down slowly
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = Backoffs()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.reconnect_backoff = 1.0
    settings.queueing.worker_limit = 20
    settings.queueing.idle_timeout = 1.0
    for kind in (POD, ENDPOINT_SLICE, *CHILD_KINDS):  # slices carry the labels of their Service
        settings.watching.label_selectors[f"{kind.plural}.{kind.group}" if kind.group else kind.plural] = (
            MANAGED_SELECTOR
        )
    return settings


async def watch(registry: kopf.OperatorRegistry, namespaces: Sequence[str | None], stop_flag: asyncio.Event) -> None:
    """Watch until the flag is set, or until kopf gives up. Afterwards kopf cancels every task of the event loop."""
    everywhere = None in namespaces
    await kopf.operator(
        registry=registry,
        settings=make_settings(),
        standalone=True,
        clusterwide=everywhere,
        namespaces=[] if everywhere else [name for name in namespaces if name is not None],
        stop_flag=stop_flag,
    )


def _handler(kind: Kind, on_event: EventCallback) -> Callable[..., Any]:
    async def handle(event: Mapping[str, Any], **_: Any) -> None:
        on_event(kind, event["object"], event["type"] == "DELETED")

    return handle
