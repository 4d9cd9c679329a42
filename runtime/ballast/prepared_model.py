"""Prepares a model for server, library and batch: checks its files, plans its memory, loads its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ballast.config.options import Config
from ballast.engine.engine import Loader
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import check_device
from ballast.host.isa import chosen_isa
from ballast.host.machine import read_machine
from ballast.host.numa import WeightMemory
from ballast.model.facts import ModelFacts, facts_of
from ballast.model.runner import Runner
from ballast.model.tensors import expected_tensors
from ballast.plan import MemoryPlan, check_memory, load_checked_text, open_checked, planned_settings, rule_lines, settle
from ballast.plan.reports.report import sums
from ballast.text.loading import Text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that fits and has not been loaded yet."""

    config: Config
    """Completed with the planned lengths and device."""
    text: Text
    load: Loader
    name: str
    """The model's own name."""
    context_length: int
    """The model's longest context, in tokens."""
    num_bytes: int = 0
    """Size of its tensors in the file."""
    planned_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the plan needs: in `host` memory, and on a `device` if there is one; empty without a plan."""
    facts: ModelFacts = field(default_factory=ModelFacts)
    """Facts about the file that clients may see."""
    has_states: bool = False
    """Whether it has layers with recurrent state."""


def prepare_model(config: Config, on_placed: Callable[[WeightMemory, str], None] = lambda *_: None) -> PreparedModel:
    """Check everything that can be checked before the weights are read. `config` is resolved. `on_placed` is called
    as by `load_runner`. Raises BallastError."""
    for name in config.machine.gpus:
        check_device(name)
    log.info("kernels", extra={"isa": chosen_isa(), "threads": config.machine.cpu_threads})
    _log_quota(config.machine.cpu_threads)
    gguf, spec = open_checked(config.model)
    prefill_is_auto = config.scheduling.prefill_chunk_size is None
    config, plan = settle(config, gguf, spec)
    _log_device(config)
    _log_lengths(plan)
    _log_streaming(plan)
    if config.scheduling.state_snapshots is not None and not spec.state_bytes:
        log.warning("state_snapshots has no effect: the model has no recurrent state")
    for line in rule_lines(plan.placement):
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

    def load(report: Callable[[float], None]) -> Runner:
        settings = replace(planned_settings(config, plan), prefill_is_auto=prefill_is_auto, finishes_later=True)
        return load_runner(gguf, spec, text.tokenizer.vocab_size, settings, report, on_placed)

    num_bytes = sum(gguf.tensors[name].num_bytes for name in expected_tensors(spec))
    return PreparedModel(
        config,
        text,
        load,
        spec.name,
        spec.context_length,
        num_bytes,
        sums(plan),
        facts_of(gguf),
        has_states=spec.state_bytes > 0,
    )


def _log_quota(num_threads: int | None) -> None:
    assert num_threads is not None, "the configuration is resolved"
    note = read_machine().quota_note(num_threads)
    if note is not None:
        log.warning("CPU quota", extra={"threads": num_threads, "note": note})


def _log_device(config: Config) -> None:
    fields = {"device": config.machine.device, "why": config.device_reason}
    if config.unused_options:
        log.warning("device", extra={**fields, "unused": ", ".join(config.unused_options)})
    else:
        log.info("device", extra=fields)
    if len(config.machine.gpus) > 1:
        log.warning("several GPUs: of whole models, only DeepSeek-R1's shape was tested on two; device=cuda:0 uses one")


def _log_lengths(plan: MemoryPlan) -> None:
    """Log the lengths derived from the model and from memory, with the reasons."""
    lengths = plan.lengths
    assert lengths is not None, "the plan is a configuration's"
    why = "; ".join(f"{name}: {reason}" for name, reason in lengths.derived.items()) or "as given"
    fields = {"max_new_tokens": lengths.max_new_tokens, "cache_lens": lengths.cache_lens, "why": why}
    log.info("lengths", extra=fields)


def _log_streaming(plan: MemoryPlan) -> None:
    """Warn of slow prompts if a smaller cache would make them fast."""
    if plan.gpus is None or not plan.gpus.streaming_cache_lens:
        return
    log.warning(
        "prompts will be slow: the GPU has no memory left through which their experts could be streamed",
        extra={"cache_lens": plan.numbers.cache_lens, "fast_with_cache_lens": plan.gpus.streaming_cache_lens},
    )
