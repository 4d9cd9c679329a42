"""The plan of a model with a GPU, where lies what every token needs and what there is room for of the routed experts.
Nothing is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ballast.machine import Memory
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.modules import module_of
from ballast.model.spec import ModelSpec
from ballast.moe.placement import Assignment
from ballast.moe.residents import Residents
from ballast.plan.device import (
    HOST_PROGRAM_BYTES,
    device_uses,
    hybrid_bytes,
    outside_bytes,
    place,
    staging_bytes,
)
from ballast.plan.memory import DeviceMemory, DevicePlan, MemoryPlan, Numbers
from ballast.plan.residents import ResidentPlan, Wanted, estimated_share, plan_residents
from ballast.plan.rows import MemoryRow, weight_rows
from ballast.plan.streaming import estimate
from ballast.weights.gguf import GgufModel

NO_EXPERTS = Wanted()
"""In a GPU's memory, and none across PCIe."""


def make_hybrid_plan(
    gguf: GgufModel,
    spec: ModelSpec,
    assignment: Assignment,
    numbers: Numbers,
    memory: Memory,
    device: DeviceMemory,
    wanted: Wanted = NO_EXPERTS,
) -> MemoryPlan:
    """As `host.make_plan`, where a GPU computes all but the routed experts. Pure."""
    assignment = place(assignment, device.name)
    pieces = list(hybrid_bytes(gguf, spec, numbers.isa, numbers.threads_per_node))
    sizes = {name: size for name, _, size in pieces}
    as_bfloat16 = sum(
        math.prod(gguf.tensors[source].shape) * 2
        for name, source, _ in pieces
        if assignment.devices[module_of(name)] != "cpu"
    )
    on_device = _device_plan(spec, sizes, assignment, numbers, device, wanted, as_bfloat16)
    whole = _whole_modules(spec, on_device.residents)
    devices = {**assignment.devices, **dict.fromkeys(whole, device.name)}
    weights = tuple(weight_rows(gguf, devices, {name: (source, size) for name, source, size in pieces}))
    in_host = sum(row.num_bytes for row in weights if row.device == "cpu")
    kept = "routed experts, packed while loading; " if on_device.has_host_experts else ""
    uses = (
        MemoryRow("weights", in_host, f"{kept}embedding in page cache"),
        MemoryRow(
            "work buffers",
            staging_bytes(spec, sizes, assignment, numbers.step_tokens, len(numbers.threads_per_node))
            + max((_bytes_of(module, sizes) for module in whole), default=0),
            f"activations of {numbers.step_tokens} tokens on their way; while loading, what goes to {device.name} next",
            numbers.step_option,
        ),
        MemoryRow("program", HOST_PROGRAM_BYTES, "Python, torch, CUDA's libraries, vocabulary; an allowance"),
    )
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        assignment=replace(assignment, devices=devices),
        max_cache_lens=0,
        numbers=numbers,
        device=on_device,
    )


def _device_plan(
    spec: ModelSpec,
    sizes: dict[str, int],
    assignment: Assignment,
    numbers: Numbers,
    device: DeviceMemory,
    wanted: Wanted,
    bfloat16_bytes: int,
) -> DevicePlan:
    def uses(num_blocks: int, *, streams: bool) -> tuple[MemoryRow, ...]:
        slots = (num_blocks + 1) * numbers.block_tokens
        return tuple(device_uses(spec, sizes, assignment, replace(numbers, streams_experts=streams), slots))

    def with_residents(*, streams: bool) -> tuple[tuple[MemoryRow, ...], ResidentPlan]:
        rows = uses(num_kv_blocks(numbers.cache_lens, numbers.block_tokens), streams=streams)
        room = device.available_bytes - sum(row.num_bytes for row in rows)
        return rows, plan_residents(spec, sizes, assignment, wanted, room)

    num_threads = sum(numbers.threads_per_node)
    # Where every expert has room without the buffers, none is left to be streamed.
    rows, residents = with_residents(streams=False)
    has_host_experts = residents.num_experts < spec.num_experts * (spec.num_layers - spec.num_dense_layers)
    streams = numbers.streams_experts and has_host_experts
    if streams:
        rows, residents = with_residents(streams=True)
    if residents.num_experts:
        asked_by = "gpu_experts" if wanted.most is not None else None
        rows = (*rows, MemoryRow("resident experts", residents.num_bytes, residents.detail, asked_by))
    share = estimated_share(num_threads) if wanted.pcie_share is None else wanted.pcie_share
    whole = _whole_modules(spec, residents.experts)
    streamed = {name: size for name, size in sizes.items() if module_of(name) not in whole}
    # A larger cache takes the place of experts, which are then streamed.
    gives_way = residents.fixed_bytes < residents.num_bytes
    without_cache, with_a_block = (
        sum(use.num_bytes for use in uses(num_blocks, streams=streams or (numbers.streams_experts and gives_way)))
        for num_blocks in (0, 1)
    )
    # Both the cache and attention's work grow by the block.
    num_blocks = (device.available_bytes - residents.fixed_bytes - without_cache) // (with_a_block - without_cache)
    return DevicePlan(
        device,
        rows,
        outside_bytes(spec, numbers.max_batch_size),
        max(0, num_blocks * numbers.block_tokens),
        estimate(spec, streamed, numbers.isa, num_threads) if streams else None,
        residents.experts,
        share if has_host_experts else 0.0,
        pcie_share_is_set=wanted.pcie_share is not None,
        has_host_experts=has_host_experts,
        bfloat16_bytes=bfloat16_bytes,
    )


def _whole_modules(spec: ModelSpec, residents: Residents) -> frozenset[str]:
    """Routed experts of which the host keeps no copy: all of their layer lie on the device."""
    return frozenset(
        f"model.layers.{spec.num_dense_layers + layer}.mlp.experts"
        for layer, ids in enumerate(residents)
        if len(ids) == spec.num_experts
    )


def _bytes_of(module: str, sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if module_of(name) == module)
