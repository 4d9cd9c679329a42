"""Builds an engine from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast._core.numa import Topology
from ballast.config.options import Config, KvTypeOption
from ballast.engine.engine import Engine, Loader
from ballast.engine.limits import Limits
from ballast.engine.observer import EngineObserver
from ballast.host.isa import chosen_isa
from ballast.host.numa_mode import NumaMode
from ballast.host.startup.measurements import MeasurementMode
from ballast.host.vram import VramLimit
from ballast.model.kv_pool import kept_type, num_kv_blocks
from ballast.model.layers.plane import KvType
from ballast.moe.gpu_experts import GpuExperts


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """A device that computes some layers, except the routed experts that stay on the CPU."""

    name: str
    """"cuda:N"."""
    layers: range
    vram: VramLimit | None = None
    """Limit of the device's memory; None: all of it."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's settings; most are command-line options of the same names."""

    cache_lens: int
    max_batch_size: int
    max_new_tokens: int
    chunk_size: int
    prefill_chunk_size: int
    max_queue: int
    max_queue_tokens: int | None = None
    max_queue_wait_s: float = 0.0
    max_stall_s: float | None = None
    """Most seconds that prompts may add to a step in which requests decode. None: see `sched.SchedulerConfig`."""
    block_tokens: int = 32
    state_snapshots: int | None = None
    """None: the usual number, see `num_state_slots`."""
    cpu_threads: int = 1
    cpu_isa: str = field(default_factory=chosen_isa)
    activation_bytes: int | None = None
    """1 or 2; None: by each matrix's type."""
    numa: NumaMode = "off"
    devices: tuple[DeviceSettings, ...] = ()
    """In the order of their layers; empty: the CPU computes everything."""
    stream_from_tokens: int | None = None
    """Fewest tokens of a step whose experts are streamed through the devices. None: measured at start; 0: never."""
    gpu_experts: GpuExperts = ()
    """Routed experts that are also in the memory of their layer's device, by layer."""
    updates_gpu_experts: bool = False
    """Whether they follow use."""
    expert_uses: NDArray[np.int64] | None = field(default=None, compare=False)
    """[routed layers, E]: how often each expert was selected before; None: unknown."""
    pcie_share: float | None = 0.0
    """Fraction of a decode step's other experts that devices read across PCIe; None: as measured."""
    prefill_is_auto: bool = False
    """`prefill_chunk_size` assumes that devices compute all experts of a long step. If the CPU computes them, the
    engine uses `chunk_size` instead."""
    packed_dir: Path | None = None
    """Folder that keeps packed weights for the next start; None: they are not kept."""
    measurements: MeasurementMode = "off"
    """Whether measurements of an earlier start are used and those of this one are kept."""
    finishes_later: bool = False
    """Whether the slowest parts of loading may end after the server is ready: compiling kernels for prompts, and graphs
    of rare batch sizes. Until then, other kernels compute these steps."""
    kv_type: KvTypeOption = "auto"
    """Type of the KV cache, as requested."""
    kv_host_bytes: int = 0
    """Host memory for KV blocks evicted from a GPU's memory."""
    kv_disk_dir: Path | None = None
    """Folder for evicted KV blocks; None: they are computed again."""
    kv_disk_bytes: int | None = None
    """Most bytes in `kv_disk_dir`; None: half of the free space."""
    topology: Topology | None = None
    """None: the machine's own. Tests pass another."""

    @property
    def kept_kv_type(self) -> KvType:
        """Type of the KV cache, on the devices if there are any."""
        return kept_type(self.kv_type, on_gpu=bool(self.devices))


def engine_settings(config: Config) -> EngineSettings:
    """The engine's settings from a resolved configuration. Its plan has the devices."""
    scheduling, machine = config.scheduling, config.machine
    assert scheduling.prefill_chunk_size is not None, "the configuration is resolved"
    assert machine.cpu_threads is not None, "the configuration is resolved"
    assert scheduling.cache_lens is not None, "the configuration has its plan's lengths"
    assert scheduling.max_new_tokens is not None, "the configuration has its plan's lengths"
    return EngineSettings(
        cache_lens=scheduling.cache_lens,
        max_batch_size=scheduling.max_batch_size,
        max_new_tokens=scheduling.max_new_tokens,
        chunk_size=scheduling.chunk_size,
        prefill_chunk_size=scheduling.prefill_chunk_size,
        max_queue=scheduling.max_queue,
        max_queue_tokens=scheduling.max_queue_tokens,
        max_queue_wait_s=scheduling.max_queue_wait_s,
        max_stall_s=None if scheduling.max_stall_ms is None else scheduling.max_stall_ms / 1000,
        block_tokens=scheduling.block_tokens,
        state_snapshots=scheduling.state_snapshots,
        cpu_threads=machine.cpu_threads,
        activation_bytes=machine.activation_bytes,
        numa=machine.numa,
        stream_from_tokens=machine.stream_from_tokens,
        pcie_share=machine.pcie_share,
        packed_dir=machine.packed_dir,
        measurements=machine.measurements,
        kv_type=machine.kv_type,
        kv_host_bytes=machine.kv_host_bytes or 0,
        kv_disk_dir=machine.kv_disk_dir,
        kv_disk_bytes=machine.kv_disk_bytes,
    )


def scheduler_config(settings: EngineSettings) -> sched.SchedulerConfig:
    """The C++ scheduler's configuration."""
    return sched.SchedulerConfig(
        num_blocks=num_kv_blocks(settings.cache_lens, settings.block_tokens),
        block_tokens=settings.block_tokens,
        max_batch_size=settings.max_batch_size,
        chunk_size=settings.chunk_size,
        prefill_chunk_size=settings.prefill_chunk_size,
        prefill_lane_tokens=settings.stream_from_tokens or None,
        max_stall_s=settings.max_stall_s,
    )


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
        max_queue_wait_s=settings.max_queue_wait_s,
    )
    return Engine(load, config, limits, observer=observer, on_death=on_death)
