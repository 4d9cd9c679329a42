"""Builds an engine from a checked model file and a resolved configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ballast._core import sched
from ballast._core.numa import Topology
from ballast.config.options import Config
from ballast.engine.engine import Engine, Limits, Loader
from ballast.engine.observer import EngineObserver
from ballast.engine.runner import Runner
from ballast.engine.threads import start_threads
from ballast.errors import OutOfMemoryError, first_line
from ballast.host.isa import chosen_isa
from ballast.host.numa import WeightMemory
from ballast.host.numa_mode import NumaMode
from ballast.host.vram import VramLimit, enforce, why_full
from ballast.model.deepseek import DeepseekModel
from ballast.model.kv_pool import KvPool, num_kv_blocks
from ballast.model.residence import weight_memory
from ballast.model.spec import ModelSpec
from ballast.model.weights import Packing, load_weights
from ballast.moe.gpu_experts import GpuExperts
from ballast.weights.gguf import GgufModel


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is built from; most are command-line options of the same names."""

    cache_lens: int
    max_batch_size: int
    max_new_tokens: int
    chunk_size: int
    prefill_chunk_size: int
    max_queue: int
    max_queue_tokens: int | None = None
    block_tokens: int = 32
    cpu_threads: int = 1
    cpu_isa: str = field(default_factory=chosen_isa)
    activation_bytes: int = 2
    numa: NumaMode = "off"
    device: str = "cpu"
    """"cpu", or "cuda:N": the device that computes everything but the routed experts."""
    stream_from_tokens: int | None = None
    """Fewest tokens of a step whose experts are streamed through the device. None: measured at start; 0: never."""
    gpu_experts: GpuExperts = ()
    """Routed experts in the device's memory as well, by layer."""
    pcie_share: float | None = 0.0
    """Of a decode step's other experts, those that the device reads from host memory; None: as measured."""
    prefill_is_auto: bool = False
    """`prefill_chunk_size` was chosen for a device that computes all experts of a long step. If the CPU turns out to
    compute them, `chunk_size` is used instead."""
    vram: VramLimit | None = None
    """Limit of the device's memory; None: all of it."""
    topology: Topology | None = None
    """None: the machine's own. Tests pass another."""


def engine_settings(config: Config) -> EngineSettings:
    """The engine's part of a resolved configuration."""
    scheduling, machine = config.scheduling, config.machine
    assert scheduling.prefill_chunk_size is not None, "the configuration is resolved"
    assert machine.cpu_threads is not None, "the configuration is resolved"
    return EngineSettings(
        cache_lens=scheduling.cache_lens,
        max_batch_size=scheduling.max_batch_size,
        max_new_tokens=scheduling.max_new_tokens,
        chunk_size=scheduling.chunk_size,
        prefill_chunk_size=scheduling.prefill_chunk_size,
        max_queue=scheduling.max_queue,
        max_queue_tokens=scheduling.max_queue_tokens,
        block_tokens=scheduling.block_tokens,
        cpu_threads=machine.cpu_threads,
        activation_bytes=machine.activation_bytes,
        numa=machine.numa,
        device=machine.device,
        stream_from_tokens=machine.stream_from_tokens,
        pcie_share=machine.pcie_share,
    )


def scheduler_config(settings: EngineSettings) -> sched.SchedulerConfig:
    """The C++ scheduler's configuration."""
    return sched.SchedulerConfig(
        num_blocks=num_kv_blocks(settings.cache_lens, settings.block_tokens),
        block_tokens=settings.block_tokens,
        max_batch_size=settings.max_batch_size,
        chunk_size=settings.chunk_size,
        prefill_chunk_size=settings.prefill_chunk_size,
        # The engine enforces the bound. Requests on their way to a free slot pass through this queue too.
        max_queue=settings.max_queue + settings.max_batch_size,
    )


def load_runner(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    settings: EngineSettings,
    report: Callable[[float], None] = lambda _: None,
    on_placed: Callable[[WeightMemory, str], None] = lambda *_: None,
) -> Runner:
    """Load the model for the settings' device. Only ids below `num_sampled_ids` can be sampled.

    `report` gets the share that is loaded, 0…1. `on_placed` gets where the weights are, and why threads are not pinned
    ("" if they are). With numa "auto" the calling thread stays pinned; see `start_threads`.
    """
    on_cpu = settings.device == "cpu"
    pool, why_not_pinned = start_threads(settings.cpu_threads, settings.numa, settings.topology, adopt_caller=on_cpu)
    packing = Packing(pool, settings.cpu_isa, settings.activation_bytes)
    with _explain_out_of_memory(settings.device, settings.vram):
        if on_cpu:
            runner, memory = _load_on_cpu(gguf_model, spec, num_sampled_ids, packing, settings, report)
        else:
            runner, memory = _load_hybrid(gguf_model, spec, num_sampled_ids, packing, settings, report)
    on_placed(memory, why_not_pinned)
    return runner


@contextmanager
def _explain_out_of_memory(device: str, limit: VramLimit | None) -> Iterator[None]:
    """Turn a failed allocation into an OutOfMemoryError with a way out.

    The plan found enough memory, so another process has taken it, an allowance in the plan was too small, or the
    process has a limit that the plan does not know.
    """
    device_is_full: tuple[type[Exception], ...] = ()
    if device != "cpu":
        import torch  # not installed for a server that uses the CPU alone

        device_is_full = (torch.OutOfMemoryError,)
    try:
        yield
    except device_is_full as error:
        raise OutOfMemoryError(f"while the model was loaded: {why_full(device, limit, error)}") from error
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the system refused memory while the model was loaded ({first_line(error)}); raise the limit on this "
            "process (`ulimit -v`), stop what else uses the memory, or lower cache_lens"
        ) from error


def _load_on_cpu(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    settings: EngineSettings,
    report: Callable[[float], None],
) -> tuple[Runner, WeightMemory]:
    weights = load_weights(gguf_model, spec, num_sampled_ids, packing, report)
    num_blocks = num_kv_blocks(settings.cache_lens, settings.block_tokens)
    kv = KvPool(spec.num_layers, num_blocks, settings.block_tokens, spec.latent_dim)
    num_positions = min(spec.context_length, num_blocks * settings.block_tokens)
    return DeepseekModel(spec, weights, packing.pool, settings.cpu_isa, kv, num_positions), weight_memory(weights)


def _load_hybrid(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    settings: EngineSettings,
    report: Callable[[float], None],
) -> tuple[Runner, WeightMemory]:
    import torch  # not installed for a server that uses the CPU alone

    from ballast.model.hybrid.load import load_hybrid_model
    from ballast.model.hybrid.load_options import HybridOptions

    if settings.vram is not None:
        enforce(settings.device, settings.vram)
    options = HybridOptions(
        device=torch.device(settings.device),
        num_sampled_ids=num_sampled_ids,
        num_blocks=num_kv_blocks(settings.cache_lens, settings.block_tokens),
        block_tokens=settings.block_tokens,
        max_step_tokens=max(settings.chunk_size, settings.prefill_chunk_size),
        max_batch_size=settings.max_batch_size,
        gpu_experts=settings.gpu_experts,
        pcie_share=settings.pcie_share,
        stream_from_tokens=settings.stream_from_tokens,
        vram=settings.vram,
        pin_thread=settings.numa == "auto",
    )
    model, weights = load_hybrid_model(gguf_model, spec, packing, options, report)
    if settings.prefill_is_auto and not model.long_steps_pay:
        model.max_prefill_tokens = settings.chunk_size
    return model, replace(weight_memory(weights), pinned_bytes=model.pinned_bytes)


def build_engine(
    load: Loader,
    settings: EngineSettings,
    context_length: int,
    *,
    observer: EngineObserver | None = None,
    on_death: Callable[[], None] | None = None,
) -> Engine:
    """An engine around `load`, with limits derived from the settings and the model's context length in tokens."""
    config = scheduler_config(settings)
    limits = Limits(
        max_new_tokens=settings.max_new_tokens,
        max_model_tokens=min(context_length, config.num_blocks * config.block_tokens),
        max_batch_size=settings.max_batch_size,
        max_queue=settings.max_queue,
        max_queue_tokens=settings.max_queue_tokens,
    )
    return Engine(load, config, limits, observer=observer, on_death=on_death)
