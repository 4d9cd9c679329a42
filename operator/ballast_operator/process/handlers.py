"""Watches by kopf. Every handler rings the bell and does nothing else; kopf writes nothing to any object."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import kopf

from ballast_operator.cluster.connect import read_configuration
from ballast_operator.cluster.kinds import CHILD_KINDS, INFERENCE_SERVICE, POD, Kind
from ballast_operator.names import MANAGED_SELECTOR

Ring = Callable[[Kind, Mapping[str, Any], bool], None]
"""Called with a kind, an object of it, and whether that is gone."""

MAX_DELAY_S = 10.0


class Backoffs:
    """Delays between attempts to reach the API server: they grow, and never end."""

    def __iter__(self) -> Iterator[float]:
        delay_s = 0.5
        while True:
            yield delay_s * random.uniform(1.0, 1.2)  # noqa: S311
            delay_s = min(MAX_DELAY_S, 2 * delay_s)


def make_registry(ring: Ring) -> kopf.OperatorRegistry:
    """Handlers for the service and for all that it owns."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for kind in (INFERENCE_SERVICE, POD, *CHILD_KINDS):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"ring-{kind.plural}")(
            _handler(kind, ring)
        )
    return registry


def make_settings() -> kopf.OperatorSettings:
    """No events, no annotations, no scanning of the cluster's kinds; limits on every wait."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = Backoffs()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.reconnect_backoff = 1.0
    settings.queueing.worker_limit = 20
    settings.queueing.idle_timeout = 1.0
    for kind in (POD, *CHILD_KINDS):
        settings.watching.label_selectors[f"{kind.plural}.{kind.group}" if kind.group else kind.plural] = (
            MANAGED_SELECTOR
        )
    return settings


async def watch(registry: kopf.OperatorRegistry, namespaces: Sequence[str | None], stop_flag: Any) -> None:
    """Watch until the flag is set, or until kopf gives up. It cancels every task of its event loop when it ends."""
    everywhere = None in namespaces
    await kopf.operator(
        registry=registry,
        settings=make_settings(),
        standalone=True,
        clusterwide=everywhere,
        namespaces=[] if everywhere else [name for name in namespaces if name is not None],
        stop_flag=stop_flag,
    )


def _handler(kind: Kind, ring: Ring) -> Callable[..., Any]:
    async def on_event(event: Mapping[str, Any], **_: Any) -> None:
        ring(kind, event["object"], event["type"] == "DELETED")

    return on_event


async def _login(**_: Any) -> kopf.ConnectionInfo:
    configuration = await read_configuration()
    header = await configuration.get_api_key_with_prefix("BearerToken") or ""
    scheme, _space, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if scheme.lower() == "bearer" else scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
