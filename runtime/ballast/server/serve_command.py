"""`ballast serve`: checks everything first, then listens, loads the model, and serves requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ballast.config.options import Config, ServerConfig, TracingConfig
from ballast.engine.engine import Engine
from ballast.engine.startup.build import build_engine, engine_settings
from ballast.engine.startup.load_progress import with_progress
from ballast.generation.text_threads import text_threads
from ballast.log import configure_logging
from ballast.prepared_model import PreparedModel, prepare_model
from ballast.server.composition import Composition
from ballast.server.http.tls import Tls
from ballast.server.lifecycle import Apps, open_listeners, run_server
from ballast.server.limits import ServerLimits
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.otlp import OtlpExporter
from ballast.server.telemetry.tracing import Tracer
from ballast.version import __version__

DEFAULT_LIMITS = ServerLimits()


def serve(config: Config) -> int:
    """Run the server until it stops, and return the exit code of a clean stop.

    Raises BallastError for errors before the engine starts. If the engine dies later, the process ends.
    """
    configure_logging(config.log)
    probe = NumaProbe()
    run(prepare_model(config, probe.watch), probe)
    return 0


def run(model: PreparedModel, probe: NumaProbe, limits: ServerLimits = DEFAULT_LIMITS) -> None:
    """Serve the model until a signal stops the process. `probe` reports the NUMA nodes of its weights."""
    config = model.config
    tracing = make_tracer(config.tracing, config.machine.device)
    with text_threads(model.text, config.model) as threads, tracing as tracer:
        listeners = open_listeners(config.server)

        def build(on_death: Callable[[], None], shutting_down: asyncio.Future[None]) -> tuple[Engine, Apps]:
            metrics = Metrics()
            load = with_progress(model.load, model.num_bytes)
            settings = engine_settings(config)
            engine = build_engine(load, settings, model.context_length, observer=metrics, on_death=on_death)
            composition = Composition(
                model, engine, threads, shutting_down, listeners.address, metrics, probe, limits, tracer
            )
            return engine, composition.apps()

        run_server(build, listeners, _tls(config.server), config.server, limits)


@contextmanager
def make_tracer(config: TracingConfig, device: str) -> Iterator[Tracer | None]:
    """Creates and sends spans, and flushes them at the end; None without a collector."""
    if config.otlp_endpoint is None:
        yield None
        return
    resource = {"service.name": config.otlp_service_name, "service.version": __version__, "ballast.device": device}
    exporter = OtlpExporter(config.otlp_endpoint, resource)
    exporter.start()
    try:
        yield Tracer(exporter.put, config.trace_share)
    finally:
        exporter.stop()


def _tls(server: ServerConfig) -> Tls | None:
    if server.tls_cert_file is None or server.tls_key_file is None:
        return None
    return Tls.load(server.tls_cert_file, server.tls_key_file)
