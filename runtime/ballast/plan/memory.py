"""What everything takes, where, and whether that is there: what a plan is, and what it is made from."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.machine import Memory
from ballast.moe.placement import Assignment
from ballast.moe.residents import Residents
from ballast.plan.rows import MemoryRow, WeightRow
from ballast.plan.streaming import StreamEstimate
from ballast.vram import VramLimit

FLOAT_BYTES = 4
"""Of an activation as it is between two operations."""


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
    """In steps of so many tokens and more, where that is set; 0: never."""

    @property
    def step_tokens(self) -> int:
        """Of the longest step."""
        return max(self.chunk_size, self.prefill_chunk_size)

    @property
    def step_option(self) -> str:
        """What `step_tokens` comes from."""
        return "prefill_chunk_size" if self.prefill_chunk_size > self.chunk_size else "chunk_size"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU, and how much of its memory may be taken."""

    name: str
    available_bytes: int
    limited_by: str
    limit_option: str | None = None
    """Whose higher value makes more of it available; None: only more memory does."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is taken of a GPU's memory."""

    memory: DeviceMemory
    uses: tuple[MemoryRow, ...]
    outside_bytes: int
    """Of `uses`, what does not pass through torch's allocator."""
    max_cache_lens: int
    """The largest cache_lens that fits there beside everything else; 0 when not even that does."""
    streaming: StreamEstimate | None = None
    residents: Residents = ()
    """Routed experts that lie there as well, by layer."""
    pcie_share: float = 0.0
    """Of a decode step's experts in host memory, what the device reads of them, as asked for or estimated."""
    pcie_share_is_set: bool = False
    has_host_experts: bool = True
    """Whether any routed expert is left to host memory alone."""
    bfloat16_bytes: int = 0
    """What its dense weights would take as bfloat16."""

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes

    @property
    def limit(self) -> VramLimit:
        """What serving keeps to."""
        return VramLimit(self.memory.available_bytes, self.outside_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Everything that a model, served with some settings, will take. `uses` and `memory` are the host's."""

    model: str
    files: tuple[str, ...]
    weights: tuple[WeightRow, ...]
    uses: tuple[MemoryRow, ...]
    memory: Memory
    assignment: Assignment
    max_cache_lens: int
    """The largest cache_lens that fits beside everything else; 0 when not even that does."""
    numbers: Numbers
    """What it was made for."""
    device: DevicePlan | None = None

    @property
    def residents(self) -> Residents:
        """Routed experts that lie on the device as well, by layer; none without one."""
        return () if self.device is None else self.device.residents

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes and (self.device is None or self.device.fits)
