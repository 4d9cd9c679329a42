"""`ballast serve`: checks everything that can be checked, then listens, loads the model, and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ballast import __version__
from ballast.config.options import Config, ReasoningField, ServerConfig
from ballast.engine.build import build_engine, engine_settings
from ballast.engine.engine import Engine, Loader
from ballast.engine.loading import load_runner
from ballast.engine.runner import Runner
from ballast.host.gpu import check_device
from ballast.host.isa import chosen_isa
from ballast.host.machine import read_machine
from ballast.log import configure_logging
from ballast.model.tensors import expected_tensors
from ballast.plan import MemoryPlan, check_memory, load_checked_text, open_checked, rule_lines, settle
from ballast.server.app import create_admin_app, create_app
from ballast.server.generation.request_builder import RequestBuilder
from ballast.server.generation.tokenize_queue import TEXT_THREADS, TokenizeQueue
from ballast.server.http.access import Access
from ballast.server.http.hosts import default_hosts
from ballast.server.http.keys import Keys
from ballast.server.http.tls import Tls
from ballast.server.lifecycle import Apps, open_listeners, run_server
from ballast.server.limits import ServerLimits, default_body_bytes
from ballast.server.service import Service
from ballast.server.telemetry.load_progress import with_progress
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.vram_metrics import VramProbe
from ballast.text.loading import Text

log = logging.getLogger(__name__)

DEFAULT_LIMITS = ServerLimits()

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
    check_device(config.machine.device)
    log.info("kernels", extra={"isa": chosen_isa(), "threads": config.machine.cpu_threads})
    _log_quota(config.machine.cpu_threads)
    gguf, spec = open_checked(config.model)
    prefill_is_auto = config.scheduling.prefill_chunk_size is None
    config, plan = settle(config, gguf, spec)
    _log_device(config)
    _log_lengths(plan)
    for line in rule_lines(plan.assignment):
        log.info("placement", extra={"rule": line})
    check_memory(plan)
    text = load_checked_text(config.model, gguf, spec)
    log.info(
        "model",
        extra={
            "gguf": str(gguf.path),
            "model": spec.name,
            "needed_bytes": plan.needed_bytes,
            "available_bytes": plan.memory.available_bytes,
            "tokenizer": text.tokenizer_source,
            "chat_template": text.template_source,
        },
    )

    probe = NumaProbe()

    def load(report: Callable[[float], None]) -> Runner:
        settings = replace(
            engine_settings(config),
            prefill_is_auto=prefill_is_auto,
            gpu_experts=plan.gpu_experts,
            vram=None if plan.device is None else plan.device.limit,
        )
        return load_runner(gguf, spec, text.tokenizer.vocab_size, settings, report, probe.watch)

    num_bytes = sum(gguf.tensors[name].num_bytes for name in expected_tensors(spec))
    run(config, load, text, spec.name, spec.context_length, probe, num_bytes=num_bytes)
    return 0


def _log_quota(num_threads: int | None) -> None:
    assert num_threads is not None, "the configuration is resolved"
    note = read_machine().quota_note(num_threads)
    if note is not None:
        log.warning("CPU quota", extra={"threads": num_threads, "note": note})


def run(
    config: Config,
    load: Loader,
    text: Text,
    name: str,
    context_length: int,
    probe: NumaProbe,
    limits: ServerLimits = DEFAULT_LIMITS,
    num_bytes: int = 0,
) -> None:
    """Serve the model that `load` loads, until the process is told to stop. `name` is the model's own name; `probe`
    reports where its weights are, which take `num_bytes` in the file."""
    with (
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-text") as executor,
        # Where a template may take as long as its limits allow, only chats wait for it.
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-chat") as guarded,
    ):
        listeners = open_listeners(config.server)
        is_guarded = text.template is not None and text.template.is_guarded
        chat_executor = guarded if is_guarded or config.model.trust_request_chat_template else executor

        def build(on_death: Callable[[], None], shutting_down: asyncio.Future[None]) -> tuple[Engine, Apps]:
            metrics = Metrics()
            settings = engine_settings(config)
            shown = with_progress(load, num_bytes)
            engine = build_engine(shown, settings, context_length, observer=metrics, on_death=on_death)
            return engine, make_apps(
                engine,
                metrics,
                text,
                name,
                config,
                executor,
                chat_executor,
                probe,
                shutting_down,
                listeners.address,
                limits,
            )

        run_server(build, listeners, _tls(config.server), config.server, limits)


def _log_device(config: Config) -> None:
    fields = {"device": config.machine.device, "why": config.device_reason}
    if config.unused_options:
        log.warning("device", extra={**fields, "unused": ", ".join(config.unused_options)})
    else:
        log.info("device", extra=fields)


def _log_lengths(plan: MemoryPlan) -> None:
    """What follows from the model and from memory, and why."""
    lengths = plan.lengths
    assert lengths is not None, "the plan is a configuration's"
    why = "; ".join(f"{name}: {reason}" for name, reason in lengths.derived.items()) or "as given"
    fields = {"max_new_tokens": lengths.max_new_tokens, "cache_lens": lengths.cache_lens, "why": why}
    log.info("lengths", extra=fields)


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
    service = Service(
        engine=engine,
        device=config.machine.device,
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
        tokenize_queue=TokenizeQueue(
            executor,
            chat_executor,
            engine.limits.max_queue,
            limits.max_bodies * max_bytes,
            config.server.request_timeout_s,
            shutting_down,
        ),
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
