"""`ballast serve`: checks everything that can be checked, then listens, loads the model, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from ballast.config.options import Config, ModelConfig, ReasoningField, ServerConfig, TracingConfig
from ballast.engine.build import build_engine, engine_settings
from ballast.engine.engine import Engine
from ballast.engine.load_progress import with_progress
from ballast.generation.request_builder import RequestBuilder
from ballast.host.isa import chosen_isa
from ballast.log import configure_logging
from ballast.model.facts import ModelFacts
from ballast.prepared_model import PreparedModel, prepare_model
from ballast.server.app import create_admin_app, create_app
from ballast.server.http.access import Access
from ballast.server.http.hosts import default_hosts
from ballast.server.http.keys import Keys
from ballast.server.http.tls import Tls
from ballast.server.lifecycle import Apps, open_listeners, run_server
from ballast.server.limits import ServerLimits, default_body_bytes
from ballast.server.requests.tokenize_queue import TEXT_THREADS, TokenizeQueue
from ballast.server.service import Service
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.otlp import OtlpExporter
from ballast.server.telemetry.tracing import Tracer
from ballast.server.telemetry.vram_metrics import VramProbe
from ballast.text.loading import Text
from ballast.version import __version__

DEFAULT_LIMITS = ServerLimits()
NOTHING_PLANNED: Mapping[str, int] = {}
NO_FACTS = ModelFacts()

_REASONING_FIELDS: Mapping[ReasoningField, Sequence[str]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
    "none": (),
}


def serve(config: Config) -> int:
    """Run the server until it stops, and return the exit code of a clean stop.

    Raises BallastError for errors before the engine starts. If the engine dies later, the process ends.
    """
    configure_logging(config.log)
    probe = NumaProbe()
    run(prepare_model(config, probe.watch), probe)
    return 0


def run(model: PreparedModel, probe: NumaProbe, limits: ServerLimits = DEFAULT_LIMITS) -> None:
    """Serve the model until the process is told to stop. `probe` reports where its weights are."""
    config, text = model.config, model.text
    device = config.machine.device
    with text_executors(text, config.model) as (executor, chat_executor), tracing(config.tracing, device) as tracer:
        listeners = open_listeners(config.server)

        def build(on_death: Callable[[], None], shutting_down: asyncio.Future[None]) -> tuple[Engine, Apps]:
            metrics = Metrics()
            settings = engine_settings(config)
            shown = with_progress(model.load, model.num_bytes)
            engine = build_engine(shown, settings, model.context_length, observer=metrics, on_death=on_death)
            return engine, make_apps(
                engine,
                metrics,
                text,
                model.name,
                config,
                executor,
                chat_executor,
                probe,
                shutting_down,
                listeners.address,
                limits,
                model.planned_bytes,
                tracer,
                model.facts,
            )

        run_server(build, listeners, _tls(config.server), config.server, limits)


@contextmanager
def tracing(asked: TracingConfig, device: str) -> Iterator[Tracer | None]:
    """What makes spans and sends them off, the last ones at the end; None where no collector is named."""
    if asked.otlp_endpoint is None:
        yield None
        return
    resource = {"service.name": asked.otlp_service_name, "service.version": __version__, "ballast.device": device}
    exporter = OtlpExporter(asked.otlp_endpoint, resource)
    exporter.start()
    try:
        yield Tracer(exporter.put, asked.trace_share)
    finally:
        exporter.stop()


@contextmanager
def text_executors(text: Text, model: ModelConfig) -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """Threads that tokenise, and those that render chat templates; they may be the same."""
    with (
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-text") as executor,
        # Where a template may take as long as its limits allow, only chats wait for it.
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-chat") as guarded,
    ):
        is_guarded = text.template is not None and text.template.is_guarded
        yield executor, guarded if is_guarded or model.trust_request_chat_template else executor


def _tls(server: ServerConfig) -> Tls | None:
    if server.tls_cert_file is None or server.tls_key_file is None:
        return None
    return Tls.load(server.tls_cert_file, server.tls_key_file)


def make_apps(
    engine: Engine,
    metrics: Metrics,
    text: Text,
    name: str,
    config: Config,
    executor: ThreadPoolExecutor,
    chat_executor: ThreadPoolExecutor,
    probe: NumaProbe,
    shutting_down: asyncio.Future[None],
    address: str,
    limits: ServerLimits = DEFAULT_LIMITS,
    planned_bytes: Mapping[str, int] = NOTHING_PLANNED,
    tracer: Tracer | None = None,
    facts: ModelFacts = NO_FACTS,
) -> Apps:
    """The applications around one engine, measured by `metrics`. `address` is the IP address that they listen on."""
    wants_key = config.server.api_key_file is not None
    names = config.model.served_model_name or (name,)
    max_bytes = config.server.max_body_bytes
    if max_bytes is None:
        max_bytes = default_body_bytes(engine.limits.max_model_tokens)
    reasoning_fields = _REASONING_FIELDS[config.model.reasoning_field]
    metrics.watch(
        engine,
        model_name=names[0],
        build={"version": __version__, "isa": chosen_isa(), "device": config.machine.device},
        alias=config.server.metrics_alias == "vllm",
    )
    metrics.registry.register(probe)
    metrics.registry.register(VramProbe(config.machine.device, config.machine.vram_limit))
    tokenize_queue = TokenizeQueue(
        executor,
        chat_executor,
        engine.limits.max_queue,
        limits.max_bodies * max_bytes,
        config.server.request_timeout_s,
        shutting_down,
    )
    engine.count_arriving = lambda: tokenize_queue.num_arriving
    service = Service(
        engine=engine,
        device=config.machine.device,
        planned_bytes=planned_bytes,
        facts=facts,
        tracer=tracer,
        request_builder=RequestBuilder(
            text,
            engine.limits,
            config.model.force_think,
            split_reasoning=bool(reasoning_fields),
            trust_templates=config.model.trust_request_chat_template,
        ),
        reasoning_fields=reasoning_fields,
        metrics=metrics,
        numa=probe,
        tokenize_queue=tokenize_queue,
        model_names=names,
        strict_model_name=config.model.strict_model_name,
        request_timeout_s=config.server.request_timeout_s,
        refuse_unknown_fields=config.server.unknown_fields == "refuse",
        clients_take_turns=config.scheduling.queue_policy == "fair",
        client_priority=config.scheduling.client_priority,
        max_body_bytes=max_bytes,
        shutting_down=shutting_down,
        access=Access(
            config.server.allowed_hosts or default_hosts(config.server.host, address, wants_key=wants_key),
            keys=None if config.server.api_key_file is None else Keys(config.server.api_key_file),
            cors_origins=config.server.cors_origins,
            root_path=config.server.root_path or "",
        ),
        admin_access=Access(default_hosts(config.server.host, address, wants_key=False)),
        limits=limits,
    )
    return Apps(create_app(service, with_admin=config.server.admin_port is None), create_admin_app(service))
