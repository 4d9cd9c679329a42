"""Builds the components of a server and connects them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ballast.engine.engine import Engine
from ballast.generation.endpoints import Endpoints
from ballast.generation.text_threads import TextThreads
from ballast.host.isa import chosen_isa
from ballast.prepared_model import PreparedModel
from ballast.server.app import admin_routers, api_routers, create_app
from ballast.server.http.access import Access
from ballast.server.http.hosts import default_hosts
from ballast.server.http.keys import Keys
from ballast.server.lifecycle import Apps
from ballast.server.limits import ServerLimits
from ballast.server.requests.tokenize_queue import TokenizeQueue
from ballast.server.service import Service
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.tracing import Tracer
from ballast.server.telemetry.vram_metrics import VramProbe
from ballast.version import __version__
from ballast.wire.body_size import default_body_bytes


@dataclass(frozen=True, slots=True)
class Composition:
    """The components of one server that live longer than its applications."""

    model: PreparedModel
    engine: Engine
    threads: TextThreads
    shutting_down: asyncio.Future[None]
    """Completed when the server must fail the requests that still run."""
    address: str
    """The IP address of the listening sockets."""
    metrics: Metrics = field(default_factory=Metrics)
    """Metrics of the engine and its requests."""
    probe: NumaProbe = field(default_factory=NumaProbe)
    """Reports the NUMA nodes of the weights."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    tracer: Tracer | None = None
    """Creates spans of requests; None: no tracing."""

    def apps(self) -> Apps:
        """The applications of the API's port and of the admin port."""
        server = self.model.config.server
        endpoints = Endpoints.of(self.model, self.engine.limits)
        self._expose_metrics(endpoints.names.names[0])
        self.engine.count_arriving = lambda: self.threads.num_arriving
        max_body_bytes = server.max_body_bytes
        if max_body_bytes is None:
            max_body_bytes = default_body_bytes(self.engine.limits.max_model_tokens)
        queue = TokenizeQueue(
            self.threads,
            self.engine.limits.max_queue,
            self.limits.max_bodies * max_body_bytes,
            server.request_timeout_s,
            self.shutting_down,
        )
        service = Service(
            self.model, self.engine, endpoints, queue, self.metrics, self.probe, self.limits, self.shutting_down
        )
        admin_access = Access(self._default_hosts(wants_key=False))
        routers = api_routers(with_admin=server.admin_port is None)
        return Apps(
            create_app(routers, service, self._api_access(), max_body_bytes, self.tracer),
            create_app(admin_routers(), service, admin_access, max_body_bytes),
        )

    def _expose_metrics(self, model_name: str) -> None:
        config = self.model.config
        self.metrics.watch(
            self.engine,
            model_name=model_name,
            build={"version": __version__, "isa": chosen_isa(), "device": config.machine.device},
            alias=config.server.metrics_alias == "vllm",
        )
        self.metrics.registry.register(self.probe)
        self.metrics.registry.register(VramProbe(config.machine.gpus, config.machine.vram_limits))

    def _api_access(self) -> Access:
        server = self.model.config.server
        keys = None if server.api_key_file is None else Keys(server.api_key_file)
        hosts = server.allowed_hosts or self._default_hosts(wants_key=keys is not None)
        return Access(hosts, keys, server.cors_origins, server.root_path or "")

    def _default_hosts(self, *, wants_key: bool) -> Sequence[str]:
        return default_hosts(self.model.config.server.host, self.address, wants_key=wants_key)
