"""What everything takes, where, and whether that is there. Nothing is loaded.

On the CPU weights are packed while they are loaded, and counted as they are then: K-quants take up to 4 % more than in
the file, and W_UK of the joint layout becomes floats. The embedding is read in place from the mapped file, through
page cache. With a GPU, what every token needs lies there instead (`device.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ballast.errors import OutOfMemoryError
from ballast.machine import Memory
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.modules import module_of
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import GROUPS, Group, expected_tensors, group_of
from ballast.moe.placement import Assignment
from ballast.moe.residents import Residents
from ballast.plan.device import (
    HOST_PROGRAM_BYTES,
    DeviceMemory,
    DeviceNumbers,
    device_uses,
    hybrid_bytes,
    place,
    staging_bytes,
)
from ballast.plan.residents import Wanted, estimated_share, plan_residents
from ballast.plan.streaming import StreamEstimate, estimate
from ballast.weights.gguf import GgufModel

NO_EXPERTS = Wanted()
"""In a GPU's memory, and none across PCIe."""

_FLOAT_BYTES = 4
_PROGRAM_BYTES = 320 << 20
"""An allowance for Python, the libraries and a vocabulary of 130,000 tokens."""


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


@dataclass(frozen=True, slots=True)
class WeightRow:
    """Tensors of one group, device and type."""

    group: Group
    device: str
    ggml_type: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One use of memory. `detail` says what it follows from."""

    name: str
    num_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is taken of a GPU's memory."""

    memory: DeviceMemory
    uses: tuple[MemoryRow, ...]
    max_cache_lens: int
    """The largest cache_lens that fits there beside everything else; 0 when not even that does."""
    streaming: StreamEstimate | None = None
    residents: Residents = ()
    """Routed experts that lie there as well, by layer."""
    pcie_share: float = 0.0
    """Of a decode step's experts in host memory, what the device reads of them, as asked for or estimated."""

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes


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


def make_plan(gguf: GgufModel, spec: ModelSpec, assignment: Assignment, numbers: Numbers, memory: Memory) -> MemoryPlan:
    """What `gguf`, a checked model, takes under `numbers` on a machine with `memory`. Pure."""
    sizes = {name: (name, size) for name, size in _loaded(gguf, spec, numbers).items()}
    weights = tuple(_weight_rows(gguf, assignment, sizes))
    kv_row_bytes = spec.latent_dim * _FLOAT_BYTES * spec.num_layers
    num_slots = (num_kv_blocks(numbers.cache_lens, numbers.block_tokens) + 1) * numbers.block_tokens
    uses = (
        MemoryRow("weights", sum(row.num_bytes for row in weights), "packed while loading; embedding in page cache"),
        MemoryRow(
            "KV cache",
            num_slots * kv_row_bytes,
            f"{num_slots - numbers.block_tokens} tokens and the null block, {human(kv_row_bytes)} a token",
        ),
        MemoryRow("work buffers", _work_bytes(spec, numbers), f"a step of {_step_tokens(numbers)} tokens, at most"),
        MemoryRow("tables", _table_bytes(spec, num_slots - numbers.block_tokens), "positions and norms"),
        MemoryRow("program", _PROGRAM_BYTES, "Python, libraries, vocabulary; an allowance"),
    )
    without_cache = sum(use.num_bytes for use in uses) - num_slots * kv_row_bytes
    num_blocks = (memory.available_bytes - without_cache) // (kv_row_bytes * numbers.block_tokens) - 1
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        assignment=assignment,
        max_cache_lens=max(0, num_blocks * numbers.block_tokens),
        numbers=numbers,
    )


def check_memory(plan: MemoryPlan) -> None:
    """Raises OutOfMemoryError with the numbers when the plan needs more than there is, in the host or on the GPU."""
    if plan.needed_bytes > plan.memory.available_bytes:
        limit = "" if plan.memory.limited_by is None else f", the limit of cgroup {plan.memory.limited_by}"
        lower = "lower chunk_size, or take a machine with more memory or a model with fewer bytes per weight"
        _refuse(plan.model, "", plan.uses, f"{human(plan.memory.available_bytes)}{limit}", plan.max_cache_lens, lower)
    if plan.device is not None and not plan.device.fits:
        memory = plan.device.memory
        lower = "lower chunk_size, or take a GPU with more memory or a model with fewer bytes per weight"
        found = f"{human(memory.available_bytes)}, {memory.limited_by}"
        _refuse(plan.model, f" on {memory.name}", plan.device.uses, found, plan.device.max_cache_lens, lower)


def _refuse(
    model: str, where: str, uses: tuple[MemoryRow, ...], available: str, max_cache_lens: int, lower: str
) -> None:
    parts = ", ".join(f"{use.name} {human(use.num_bytes)}" for use in uses)
    needed = human(sum(use.num_bytes for use in uses))
    way_out = f"the largest cache_lens that fits is {max_cache_lens}" if max_cache_lens else lower
    raise OutOfMemoryError(f"{model} needs {needed}{where} ({parts}), available are {available}; {way_out}")


def human(num_bytes: int) -> str:
    """Binary units, three digits or so."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"


def make_hybrid_plan(
    gguf: GgufModel,
    spec: ModelSpec,
    assignment: Assignment,
    numbers: Numbers,
    memory: Memory,
    device: DeviceMemory,
    wanted: Wanted = NO_EXPERTS,
) -> MemoryPlan:
    """The same where a GPU computes all but the routed experts. Pure."""
    assignment = place(assignment, device.name)
    pieces = list(hybrid_bytes(gguf, spec, numbers.isa, numbers.threads_per_node))
    sizes = {name: size for name, _, size in pieces}
    weights = tuple(_weight_rows(gguf, assignment, {name: (source, size) for name, source, size in pieces}))
    in_host = sum(row.num_bytes for row in weights if row.device == "cpu")
    uses = (
        MemoryRow("weights", in_host, "routed experts, packed while loading; embedding in page cache"),
        MemoryRow(
            "work buffers",
            staging_bytes(spec, sizes, assignment, _step_tokens(numbers)),
            f"activations of {_step_tokens(numbers)} tokens on their way; while loading, the largest matrix",
        ),
        MemoryRow("program", HOST_PROGRAM_BYTES, "Python, torch, CUDA's libraries, vocabulary; an allowance"),
    )
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        assignment=assignment,
        max_cache_lens=0,
        numbers=numbers,
        device=_device_plan(spec, sizes, assignment, numbers, device, wanted),
    )


def _device_plan(
    spec: ModelSpec,
    sizes: dict[str, int],
    assignment: Assignment,
    numbers: Numbers,
    device: DeviceMemory,
    wanted: Wanted,
) -> DevicePlan:
    def uses(num_blocks: int) -> tuple[MemoryRow, ...]:
        slots = (num_blocks + 1) * numbers.block_tokens
        settings = DeviceNumbers(
            slots, numbers.block_tokens, _step_tokens(numbers), numbers.max_batch_size, numbers.streams_experts
        )
        return tuple(MemoryRow(*use) for use in device_uses(spec, sizes, assignment, settings))

    def total(num_blocks: int) -> int:
        return sum(use.num_bytes for use in uses(num_blocks))

    num_threads = sum(numbers.threads_per_node)
    rows = uses(num_kv_blocks(numbers.cache_lens, numbers.block_tokens))
    room = device.available_bytes - sum(row.num_bytes for row in rows)
    residents = plan_residents(spec, sizes, assignment, wanted, room)
    if residents.num_experts:
        rows = (*rows, MemoryRow("resident experts", residents.num_bytes, residents.detail))
    # Both the cache and attention's work grow by the block.
    num_blocks = (device.available_bytes - residents.fixed_bytes - total(0)) // (total(1) - total(0))
    return DevicePlan(
        device,
        rows,
        max(0, num_blocks * numbers.block_tokens),
        estimate(spec, sizes, numbers.isa, num_threads) if numbers.streams_experts else None,
        residents.experts,
        estimated_share(num_threads) if wanted.pcie_share is None else wanted.pcie_share,
    )


def _loaded(gguf: GgufModel, spec: ModelSpec, numbers: Numbers) -> dict[str, int]:
    return loaded_bytes(gguf, spec, numbers.isa, numbers.threads_per_node)


def _weight_rows(gguf: GgufModel, assignment: Assignment, weights: dict[str, tuple[str, int]]) -> Iterator[WeightRow]:
    """`weights`: name → (tensor that it is made of, bytes)."""
    tensors: Counter[tuple[Group, str, str]] = Counter()
    sizes: Counter[tuple[Group, str, str]] = Counter()
    for name, (source, num_bytes) in weights.items():
        key = (group_of(name), assignment.devices[module_of(name)], gguf.tensors[source].ggml_type.name)
        tensors[key] += 1
        sizes[key] += num_bytes
    for key in sorted(tensors, key=lambda key: (GROUPS.index(key[0]), *key)):
        yield WeightRow(*key, tensors[key], sizes[key])


def _step_tokens(numbers: Numbers) -> int:
    return max(numbers.chunk_size, numbers.prefill_chunk_size)


def _work_bytes(spec: ModelSpec, numbers: Numbers) -> int:
    """Activations alive at once in the widest part of a layer, and the logits of a full batch."""
    head = spec.nope_dim + spec.rope_dim
    query = head + spec.nope_dim + spec.rope_dim + spec.kv_lora_rank + spec.latent_dim
    attention = spec.latent_dim + spec.num_heads * (query + spec.kv_lora_rank + spec.v_dim)
    shared = 2 * spec.expert_dim * spec.num_shared_experts
    experts = spec.num_experts + spec.num_experts_used * spec.expert_dim + shared
    widest = max(attention, 2 * spec.ffn_dim, experts)
    logits = numbers.max_batch_size * spec.vocab_size
    return (_step_tokens(numbers) * (4 * spec.hidden + widest) + 4 * logits) * _FLOAT_BYTES


def _table_bytes(spec: ModelSpec, num_cached_tokens: int) -> int:
    positions = min(spec.context_length, num_cached_tokens) * spec.rope_dim
    norms = sum(shape[0] for shape in expected_tensors(spec).values() if len(shape) == 1)
    return (positions + norms) * _FLOAT_BYTES
