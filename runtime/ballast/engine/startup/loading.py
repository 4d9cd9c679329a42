"""Loads the runner of an engine for the devices in the settings."""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ballast._core import numa
from ballast.engine.startup.build import EngineSettings
from ballast.engine.threads import start_threads
from ballast.errors import OutOfMemoryError, first_line
from ballast.host.machine import read_machine
from ballast.host.numa import WeightMemory, threads_per_node
from ballast.host.sizes import human
from ballast.host.startup.kernel_cache import measurements_folder
from ballast.host.startup.machine_facts import machine_facts
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.host.vram import enforce, why_full
from ballast.model.kept_weights import kept_weights
from ballast.model.kv_pool import (
    KvPool,
    StatePool,
    num_kv_blocks,
    num_state_slots,
    num_window_blocks,
    outstanding_tokens,
)
from ballast.model.packed_tensors import Packing
from ballast.model.residence import weight_memory
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.tiers.cache_blocks import CacheBlocks, CacheStates, PoolBlocks, PoolStates, num_states_in
from ballast.model.tiers.disk_folder import open_disk_tier
from ballast.model.tiers.host_tier import HostTier, piece_sizes
from ballast.model.tiers.tier import CacheTiers, KvTier
from ballast.model.transformer import Transformer
from ballast.model.weights import load_weights
from ballast.moe.heat_keeper import HeatKeeper
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_dir import open_packed_dir

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ballast.model.hybrid.model import HybridModel
    from ballast.model.hybrid.platforms.interface import Take

log = logging.getLogger(__name__)

_PLACED_STEPS = 16
"""Fractions of the experts that follow use are compared in steps of one over this."""


def load_runner(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    settings: EngineSettings,
    report: Callable[[float], None] = lambda _: None,
    on_placed: Callable[[WeightMemory, str], None] = lambda *_: None,
) -> Runner:
    """Load the model for the settings' devices. Only ids below `num_sampled_ids` can be sampled.

    `report` gets the loaded fraction, 0…1. `on_placed` gets where the weights are, and why threads are not pinned
    ("" if they are). With numa "auto" the calling thread stays pinned; see `start_threads`.
    """
    start = Start(_measurements(gguf_model, spec, settings))
    on_cpu = not settings.devices
    gpus = [device.name for device in settings.devices]
    pool, why_not_pinned = start_threads(
        settings.cpu_threads, settings.numa, settings.topology, gpus, adopt_caller=on_cpu
    )
    packing = _with_packed_dir(Packing(pool, settings.cpu_isa, settings.activation_bytes), gguf_model, spec, settings)
    load = _load_on_cpu if on_cpu else _load_hybrid
    with _explain_out_of_memory(settings):
        runner, memory = load(gguf_model, spec, num_sampled_ids, packing, settings, report, start)
    if packing.kept is not None:
        packing.kept.finish()
        weakref.finalize(runner, packing.kept.close)
    on_placed(replace(memory, gpus=gpus), why_not_pinned)
    return runner


def _measurements(gguf_model: GgufModel, spec: ModelSpec, settings: EngineSettings) -> Measurements:
    """The measurements of earlier starts under the same conditions, if settings allow their use."""
    if settings.measurements == "off":
        return Measurements()
    try:
        folder = measurements_folder()
        machine = read_machine()
    except OSError as error:
        log.warning("measurements are not kept", extra={"why": error.strerror or str(error)})
        return Measurements()
    headers = hashlib.sha256()
    for file in gguf_model.files:
        headers.update(gguf_model.header(file).tobytes())
    facts = {
        **machine_facts(machine, [each.name for each in settings.devices]),
        "layers": [[each.layers.start, each.layers.stop] for each in settings.devices],
        "model": [spec.name, headers.hexdigest(), hashlib.sha256(repr(spec).encode()).hexdigest()],
        "threads": [settings.cpu_threads, settings.numa, settings.cpu_isa],
        "activation_bytes": settings.activation_bytes,
        "block_tokens": settings.block_tokens,
        "max_batch_size": settings.max_batch_size,
        "chunk_size": settings.chunk_size,
        "prefill_chunk_size": settings.prefill_chunk_size,
        "stream_from_tokens": settings.stream_from_tokens,
        "pcie_share": settings.pcie_share,
        "kv_type": settings.kept_kv_type,
        "gpu_experts": hashlib.sha256(repr(_placed(spec, settings)).encode()).hexdigest(),
    }
    return Measurements(folder, facts, reuse=settings.measurements == "kept")


def _placed(spec: ModelSpec, settings: EngineSettings) -> object:
    """What measurements depend on: the experts in GPU memory, or only about how many of all if they follow use. Then
    even the number of each layer differs from start to start."""
    if not settings.updates_gpu_experts:
        return settings.gpu_experts
    num_experts = spec.routing.num_experts * len(spec.routed_layers)
    return "follow use", round(_PLACED_STEPS * sum(map(len, settings.gpu_experts)) / num_experts)


def _with_packed_dir(packing: Packing, gguf_model: GgufModel, spec: ModelSpec, settings: EngineSettings) -> Packing:
    """The packing, with the folder for packed weights if it can be used."""
    if settings.packed_dir is None:
        return packing
    nodes = threads_per_node(settings.topology or numa.read_topology(), settings.cpu_threads, settings.numa)
    weights = kept_weights(
        gguf_model,
        spec,
        packing.isa,
        nodes,
        on_gpu=bool(settings.devices),
        gpu_experts=settings.gpu_experts,
    )
    kept = open_packed_dir(settings.packed_dir, gguf_model, packing.isa, nodes, weights.tensors, weights.file_bytes)
    return replace(packing, kept=kept, kept_tensors=weights.tensors)


@contextmanager
def _explain_out_of_memory(settings: EngineSettings) -> Iterator[None]:
    """Turn a failed allocation into an OutOfMemoryError with a way out.

    The plan found enough memory, so another process has taken it, the plan's reserve was too small, or the process has
    a limit that the plan does not know.
    """
    device_is_full: tuple[type[Exception], ...] = ()
    says_which: tuple[type[Exception], ...] = ()
    if settings.devices:
        import torch  # not installed for a server that uses the CPU alone

        from ballast.model.hybrid.faults.device_errors import DeviceFullError

        device_is_full, says_which = (torch.OutOfMemoryError,), (DeviceFullError,)
    try:
        yield
    except says_which as error:
        raise OutOfMemoryError(f"while the model was loaded: {error}") from error
    except device_is_full as error:
        first = settings.devices[0]  # work outside the stages of a device is done here
        raise OutOfMemoryError(f"while the model was loaded: {why_full(first.name, first.vram, error)}") from error
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
    start: Start,
) -> tuple[Runner, WeightMemory]:
    with start.times.phase("weights"):
        weights = load_weights(gguf_model, spec, num_sampled_ids, packing, report)
    num_blocks = num_kv_blocks(settings.cache_lens, settings.block_tokens)
    window = _window(spec, settings, has_lanes=False)
    window_blocks = None if window is None else window[1]
    kv = KvPool(spec.planes, num_blocks, settings.block_tokens, window_blocks, settings.kept_kv_type)
    num_positions = min(spec.context_length, num_blocks * settings.block_tokens)
    state_slots = _state_slots(spec, settings, num_blocks, on_gpu=False)
    states = StatePool(spec.states, state_slots) if state_slots else None
    runner = Transformer(spec, weights, packing.pool, settings.cpu_isa, kv, num_positions, states)
    runner.start = start
    runner.state_slots = state_slots
    runner.state_bytes = 0 if states is None else states.slot_bytes
    runner.window = window
    if settings.kv_disk_dir is not None:
        kept_states = None if states is None else PoolStates(states)
        runner.cache_tiers = _tiers(gguf_model, PoolBlocks(kv), settings, kept_states)
    return runner, weight_memory(weights)


def _heat_of(model: weakref.ref[HybridModel]) -> NDArray[np.float64] | None:
    """The heat of a model's experts; None for a model that is gone. It may be gone without having been closed."""
    found = model()
    return None if found is None else found.expert_heat()


def _state_slots(spec: ModelSpec, settings: EngineSettings, num_blocks: int, *, on_gpu: bool) -> int:
    """Slots of recurrent state for a cache of `num_blocks`; 0 for a model without such state."""
    capacity, batch = num_blocks * settings.block_tokens, settings.max_batch_size
    return num_state_slots(spec.states, capacity, batch, settings.state_snapshots, on_gpu=on_gpu)


def _window(spec: ModelSpec, settings: EngineSettings, *, has_lanes: bool) -> tuple[int, int] | None:
    """See `Runner.window`. `has_lanes`: see `outstanding_tokens`."""
    if spec.window is None:
        return None
    found = num_window_blocks(
        spec.window,
        num_kv_blocks(settings.cache_lens, settings.block_tokens),
        settings.block_tokens,
        settings.max_batch_size,
        outstanding_tokens(settings.chunk_size, settings.prefill_chunk_size, has_lanes=has_lanes),
        has_tiers=settings.kv_disk_dir is not None or settings.kv_host_bytes > 0,
    )
    return None if found is None else (spec.window, found)


def _tiers(
    gguf_model: GgufModel, cache: CacheBlocks, settings: EngineSettings, states: CacheStates | None = None
) -> CacheTiers | None:
    """The configured tiers of the KV cache that can be used; None without any."""
    news = threading.Event()
    tiers: list[KvTier] = []
    state_bytes = 0 if states is None else states.state_bytes
    for_states = num_states_in(settings.kv_host_bytes, state_bytes) * state_bytes
    if state_bytes and settings.kv_host_bytes and not for_states:
        why = f"a quarter of it is too small for one recurrent state of {human(state_bytes)}; raise kv_host_bytes"
        log.warning("kv_host_bytes is not used", extra={"why": why})
    elif settings.kv_host_bytes - for_states >= cache.block_bytes:
        try:
            tiers.append(HostTier(cache, settings.kv_host_bytes, states))
        except MemoryError as error:
            log.warning("kv_host_bytes is not used", extra={"why": first_line(error)})
    if settings.kv_disk_dir is not None:
        nodes = threads_per_node(settings.topology or numa.read_topology(), settings.cpu_threads, settings.numa)
        kinds = dict.fromkeys(each.name.partition(":")[0] for each in settings.devices)
        machine = (",".join(kinds) or "cpu", settings.cpu_isa, settings.activation_bytes, len(nodes))
        disk = open_disk_tier(
            settings.kv_disk_dir,
            settings.kv_disk_bytes,
            gguf_model,
            cache,
            settings.block_tokens,
            machine,
            news.set,
            states,
        )
        tiers += [] if disk is None else [disk]
    return CacheTiers(cache, tiers, news, states) if tiers else None


def copied_cache(model: HybridModel, block_tokens: int, take: Take) -> tuple[CacheBlocks, CacheStates | None]:
    """The blocks and the recurrent states of a model's devices, to be copied to memory that `take` allocates."""
    from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
    from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
    from ballast.model.hybrid.copies.device_states import DeviceStates

    own = [
        DeviceBlocks(each.kv.tensors, block_tokens, take, each.kv.has_windows)
        for each in model.devices
        if each.kv.tensors
    ]
    states = [each.states.tensors for each in model.devices]
    return BlocksOfDevices(own, take), DeviceStates(states, take) if any(states) else None


def _load_hybrid(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    settings: EngineSettings,
    report: Callable[[float], None],
    start: Start,
) -> tuple[Runner, WeightMemory]:
    import torch  # not installed for a server that uses the CPU alone

    from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
    from ballast.model.hybrid.load import load_hybrid_model
    from ballast.model.hybrid.load_options import DeviceOptions, HybridOptions
    from ballast.model.hybrid.platforms.platform_of import platform_of

    for each in settings.devices:
        if each.vram is not None:
            enforce(each.name, each.vram)
    window = _window(spec, settings, has_lanes=True)
    num_blocks = num_kv_blocks(settings.cache_lens, settings.block_tokens)
    state_slots = _state_slots(spec, settings, num_blocks, on_gpu=True)
    options = HybridOptions(
        devices=[DeviceOptions(torch.device(each.name), each.layers, each.vram) for each in settings.devices],
        num_sampled_ids=num_sampled_ids,
        num_blocks=num_blocks,
        block_tokens=settings.block_tokens,
        num_window_blocks=None if window is None else window[1],
        num_state_slots=state_slots,
        kv_dtype={"fp16": torch.float16, "fp8": torch.float8_e4m3fn}[settings.kept_kv_type],
        max_step_tokens=max(settings.chunk_size, settings.prefill_chunk_size),
        max_batch_size=settings.max_batch_size,
        gpu_experts=settings.gpu_experts,
        updates_gpu_experts=settings.updates_gpu_experts,
        expert_uses=settings.expert_uses,
        pcie_share=settings.pcie_share,
        stream_from_tokens=settings.stream_from_tokens,
        pin_thread=settings.numa != "off",
        finishes_later=settings.finishes_later,
        start=start,
    )
    first = options.devices[0].device
    use_device = partial(torch.cuda.set_device, first)
    take = platform_of(first).host_memory()
    with PinnedAhead(piece_sizes(settings.kv_host_bytes, spec.state_bytes), take, use_device) as ahead:
        model, weights = load_hybrid_model(gguf_model, spec, packing, options, report, ahead)
        if settings.kv_host_bytes or settings.kv_disk_dir is not None:
            blocks, states = copied_cache(model, settings.block_tokens, ahead.take)
            model.cache_tiers = _tiers(gguf_model, blocks, settings, states)
    if settings.updates_gpu_experts and settings.measurements != "off":
        heat = partial(_heat_of, weakref.ref(model))
        model.on_close = HeatKeeper(gguf_model, spec.name, spec.routing.num_experts_used, heat).close
    model.window = window
    model.state_slots, model.state_bytes = state_slots, spec.state_bytes
    if settings.prefill_is_auto and not model.long_steps_pay:
        model.max_prefill_tokens = settings.chunk_size
    return model, replace(weight_memory(weights), pinned_bytes=model.pinned_bytes)
