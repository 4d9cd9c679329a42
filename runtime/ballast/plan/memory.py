"""Memory plans: what everything takes, where, and whether it fits; and the numbers that a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Numbers:
    """The settings that memory depends on."""

    cache_lens: int
    block_tokens: int
    max_batch_size: int
    chunk_size: int
    prefill_chunk_size: int
    isa: str = "reference"
    threads_per_node: tuple[int, ...] = (1,)
    streams_experts: bool = False
    """Through a GPU, in long steps."""
    stream_from_tokens: int | None = None
    """Fewest tokens of a step that is streamed, where that is set; 0: none is."""

    tiers: KvTierSizes = NO_TIERS
    """What stands beside the KV cache."""

    @property
    def step_tokens(self) -> int:
        """Of the longest step."""
        return max(self.chunk_size, self.prefill_chunk_size)

    @property
    def has_prefill_lane(self) -> bool:
        """Whether long prompts have steps of their own on a GPU, beside those that decode."""
        return self.streams_experts or self.prefill_chunk_size > self.chunk_size

    @property
    def step_option(self) -> str:
        """The option that sets `step_tokens`."""
        return "prefill_chunk_size" if self.prefill_chunk_size > self.chunk_size else "chunk_size"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU, and how much of its memory may be taken."""

    name: str
    available_bytes: int
    limited_by: str
    limit_option: str | None = None
    """The option whose higher value makes more memory available; None: there is none."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The plan of a GPU's memory."""

    memory: DeviceMemory
    uses: tuple[MemoryRow, ...]
    outside_bytes: int
    """Bytes of `uses` that do not pass through torch's allocator."""
    max_cache_lens: int
    """The largest cache_lens that fits there beside everything else; 0 when not even that does."""
    streaming: StreamEstimate | None = None
    gpu_experts: GpuExperts = ()
    """Routed experts that lie there as well, by layer."""
    pcie_share: float = 0.0
    """Share of a decode step's experts in host memory that the device reads, as asked for or estimated."""
    pcie_share_is_set: bool = False
    has_host_experts: bool = True
    """Whether any routed expert is left to host memory alone."""
    bfloat16_bytes: int = 0
    """Bytes that the dense weights would take as bfloat16."""
    streaming_cache_lens: int = 0
    """The largest cache_lens that would leave room for the buffers of streamed experts; 0 where it makes no
    difference."""

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes

    @property
    def limit(self) -> VramLimit:
        """The limit that a server keeps to."""
        return VramLimit(self.memory.available_bytes, self.outside_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All memory that a model takes under some settings. `uses` and `memory` are the host's."""

    model: str
    files: tuple[str, ...]
    weights: tuple[WeightRow, ...]
    uses: tuple[MemoryRow, ...]
    memory: Memory
    placement: Placement
    max_cache_lens: int
    """The largest cache_lens that fits beside everything else; 0 when not even that does."""
    numbers: Numbers
    """The settings that the plan was made for."""
    device: DevicePlan | None = None
    lengths: Lengths | None = None
    """The lengths of replies and of the cache; None where the plan was made for numbers alone."""

    @property
    def gpu_experts(self) -> GpuExperts:
        """Routed experts that lie on the device as well, by layer; none without one."""
        return () if self.device is None else self.device.gpu_experts

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes and (self.device is None or self.device.fits)

    @property
    def cache_fits(self) -> bool:
        """Whether what holds the cache, the GPU if there is one, has memory for it."""
        return self.fits if self.device is None else self.device.fits

    @property
    def largest_cache(self) -> int:
        """The largest cache_lens that what holds the cache has memory for; 0 when it has for none."""
        return self.max_cache_lens if self.device is None else self.device.max_cache_lens
