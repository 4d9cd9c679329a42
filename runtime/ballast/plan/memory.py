"""Memory plans: each use of memory, its device, and whether the sums fit; and the settings behind a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ballast.config.options import KvTypeOption
from ballast.host.machine import Memory
from ballast.host.vram import VramLimit
from ballast.moe.device_rules import Placement
from ballast.moe.gpu_experts import GpuExperts
from ballast.plan.kv_tiers import NO_TIERS, KvTierSizes
from ballast.plan.lengths import Lengths
from ballast.plan.rows import MemoryRow, WeightRow
from ballast.plan.streaming import StreamEstimate

FLOAT_BYTES = 4
"""Bytes of an activation between two operations."""
_ROUNDED_BYTES = 4
"""Bytes of an activation rounded to two bytes; each block of 32 also has a scale and sums, on its own cache line."""
_ARRANGED_BYTES = 3
"""Additional bytes of an activation in the order of AMX tiles, including the correction of the tiles' sums."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The settings that determine memory use."""

    cache_lens: int
    block_tokens: int
    max_batch_size: int
    chunk_size: int
    prefill_chunk_size: int
    isa: str = "reference"
    threads_per_node: tuple[int, ...] = (1,)
    streams_experts: bool = False
    """Whether long steps stream experts through a GPU."""
    stream_from_tokens: int | None = None
    """Fewest tokens of a step that streams experts, if set; 0: no step does."""

    state_snapshots: int | None = None
    """Snapshots of recurrent state; None: the usual number."""
    tiers: KvTierSizes = NO_TIERS
    """The tiers of the KV cache."""
    kv_type: KvTypeOption = "auto"
    """The type of the KV cache."""

    @property
    def step_tokens(self) -> int:
        """Tokens of the longest step."""
        return max(self.chunk_size, self.prefill_chunk_size)

    @property
    def has_prefill_lane(self) -> bool:
        """Whether long prompts have their own steps on a GPU, concurrent with decode steps."""
        return self.streams_experts or self.prefill_chunk_size > self.chunk_size

    @property
    def step_option(self) -> str:
        """The option that sets `step_tokens`."""
        return "prefill_chunk_size" if self.prefill_chunk_size > self.chunk_size else "chunk_size"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU, and how much of its memory may be used."""

    name: str
    """"cuda:N"."""
    available_bytes: int
    limited_by: str
    limit_option: str | None = None
    """The option that raises the available memory; None: there is none."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The plan of a GPU's memory."""

    memory: DeviceMemory
    layers: range
    """The layers that the GPU computes."""
    uses: tuple[MemoryRow, ...]
    outside_bytes: int
    """Bytes of `uses` that do not pass through torch's allocator."""
    max_cache_lens: int
    """The largest cache_lens that fits with everything else; 0 if none fits."""

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes

    @property
    def limit(self) -> VramLimit:
        """The limit that a server enforces."""
        return VramLimit(self.memory.available_bytes, self.outside_bytes)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan of a model that GPUs compute, except some of its routed experts."""

    devices: tuple[DevicePlan, ...]
    """In the order of their layers."""
    streaming: StreamEstimate | None = None
    gpu_experts: GpuExperts = ()
    """Routed experts that a GPU's memory also holds, by layer."""
    updates_experts: bool = False
    """Whether they follow use."""
    expert_uses: NDArray[np.int64] | None = field(default=None, compare=False)
    """[routed layers, E]: how often each was selected before; None: unknown."""
    pcie_share: float = 0.0
    """Fraction of a decode step's experts in host memory that GPUs read, as set or estimated."""
    pcie_share_is_set: bool = False
    has_host_experts: bool = True
    """Whether any routed expert is in host memory only."""
    bfloat16_bytes: int = 0
    """Size of the dense weights as bfloat16."""
    streaming_cache_lens: int = 0
    """The largest cache_lens that would leave room for the buffers of streamed experts; 0 if a smaller cache does not
    help."""

    @property
    def needed_bytes(self) -> int:
        return sum(device.needed_bytes for device in self.devices)

    @property
    def fits(self) -> bool:
        return all(device.fits for device in self.devices)

    @property
    def max_cache_lens(self) -> int:
        """The largest cache_lens that fits on every device with everything else; 0 if none fits."""
        return self.cache_limiter.max_cache_lens

    @property
    def cache_limiter(self) -> DevicePlan:
        """The device that has room for the smallest cache."""
        return min(self.devices, key=lambda device: device.max_cache_lens)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All memory that a model needs under some settings. `uses` and `memory` are the host's."""

    model: str
    files: tuple[str, ...]
    weights: tuple[WeightRow, ...]
    uses: tuple[MemoryRow, ...]
    memory: Memory
    placement: Placement
    max_cache_lens: int
    """The largest cache_lens that fits with everything else; 0 if none fits."""
    numbers: Numbers
    """The settings behind the plan."""
    gpus: GpuPlan | None = None
    lengths: Lengths | None = None
    """The lengths of replies and of the cache; None if the plan was made from numbers only."""

    @property
    def gpu_experts(self) -> GpuExperts:
        """Routed experts that a GPU also holds, by layer; none without a GPU."""
        return () if self.gpus is None else self.gpus.gpu_experts

    @property
    def holds_all_experts(self) -> bool:
        """Whether GPUs hold all routed experts."""
        return self.gpus is not None and not self.gpus.has_host_experts

    @property
    def updates_gpu_experts(self) -> bool:
        """Whether the experts in GPU memory follow use."""
        return self.gpus is not None and self.gpus.updates_experts

    @property
    def expert_uses(self) -> NDArray[np.int64] | None:
        """See `GpuPlan`."""
        return None if self.gpus is None else self.gpus.expert_uses

    @property
    def devices(self) -> tuple[DevicePlan, ...]:
        """The GPUs, in the order of their layers."""
        return () if self.gpus is None else self.gpus.devices

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes and (self.gpus is None or self.gpus.fits)

    @property
    def cache_fits(self) -> bool:
        """Whether the cache fits where it is: on GPUs if there are any, otherwise on the host."""
        return self.fits if self.gpus is None else self.gpus.fits

    @property
    def largest_cache(self) -> int:
        """The largest cache_lens that fits where the cache is; 0 if none fits."""
        return self.max_cache_lens if self.gpus is None else self.gpus.max_cache_lens


def input_bytes(cols: int) -> int:
    """Scratch memory for the input of a product on the CPU: `cols` activations, rounded."""
    return cols * _ROUNDED_BYTES


def hidden_bytes(cols: int) -> int:
    """Scratch memory for the hidden values between up and down: `cols` activations, as floats and then rounded."""
    return cols * (FLOAT_BYTES + _ROUNDED_BYTES + _ARRANGED_BYTES)


def sums_bytes(hidden: int, num_calls: int, num_nodes: int) -> int:
    """Scratch memory for each NUMA node's partial results, if there are several nodes."""
    return num_calls * num_nodes * hidden * FLOAT_BYTES if num_nodes > 1 else 0
