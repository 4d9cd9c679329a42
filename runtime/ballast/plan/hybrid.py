"""The memory plan of a model with a GPU, which holds everything but routed experts, and as many of those as fit.
Nothing is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ballast.host.machine import Memory
from ballast.model.kept_weights import kept_weights
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expert_module, used_tensors
from ballast.moe.device_rules import NO_RULES, Placement
from ballast.moe.gpu_experts import GpuExperts
from ballast.plan.device import (
    HOST_PROGRAM_BYTES,
    compared_on_gpu,
    computes_on_gpu,
    device_uses,
    gpu_cache,
    hybrid_bytes,
    kv_row_bytes,
    outside_bytes,
    staging_bytes,
)
from ballast.plan.gpu_experts import GpuExpertOptions, GpuExpertPlan, estimated_share, plan_gpu_experts
from ballast.plan.kv_tiers import host_rows
from ballast.plan.memory import DeviceMemory, DevicePlan, MemoryPlan, Numbers
from ballast.plan.rows import MemoryRow, PackedFolder, host_weight_rows, weight_rows
from ballast.plan.streaming import estimate
from ballast.weights.gguf import GgufModel

NO_EXPERTS = GpuExpertOptions()
"""No experts in a GPU's memory, and none read across PCIe."""


def make_hybrid_plan(
    gguf: GgufModel,
    spec: ModelSpec,
    numbers: Numbers,
    memory: Memory,
    device: DeviceMemory,
    expert_options: GpuExpertOptions = NO_EXPERTS,
    folder: PackedFolder | None = None,
    placement: Placement = NO_RULES,
) -> MemoryPlan:
    """As `host.make_plan`, for a model whose routed experts run on the CPU and the rest on a GPU. Pure."""
    tensors = used_tensors(spec)
    sources = list(hybrid_bytes(gguf, spec, numbers.isa, numbers.threads_per_node))
    sizes = {name: size for name, _, size in sources}
    as_bfloat16 = sum(
        math.prod(gguf.tensors[source].shape) * 2
        for name, source, _ in sources
        if computes_on_gpu(tensors[name].module)
    )
    on_device = _device_plan(spec, sizes, placement, numbers, device, expert_options, as_bfloat16)
    whole = whole_modules(spec, on_device.gpu_experts)

    def device_of(module: str) -> str:
        return device.name if computes_on_gpu(module) or module in whole else "cpu"

    weights = tuple(weight_rows(gguf, spec, device_of, {name: (source, size) for name, source, size in sources}))
    in_host = sum(row.num_bytes for row in weights if row.device == "cpu")
    kept = kept_weights(
        gguf, spec, numbers.isa, numbers.threads_per_node, on_gpu=True, gpu_experts=on_device.gpu_experts
    )
    packed = "routed experts, packed while loading; " if on_device.has_host_experts else ""
    uses = (
        *host_weight_rows(in_host, f"{packed}embedding in page cache", kept, folder),
        MemoryRow(
            "work buffers",
            staging_bytes(spec, sizes, numbers.step_tokens, len(numbers.threads_per_node))
            + max((_bytes_of(module, spec, sizes) for module in whole), default=0),
            f"activations of {numbers.step_tokens} tokens in transit; while loading, the next tensor for {device.name}",
            numbers.step_option,
        ),
        *host_rows(numbers.tiers, numbers.block_tokens * kv_row_bytes(spec), numbers.block_tokens),
        MemoryRow("program", HOST_PROGRAM_BYTES, "Python, torch, CUDA's libraries, vocabulary; an estimate"),
    )
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        placement=compared_on_gpu(placement),
        max_cache_lens=0,
        numbers=numbers,
        device=on_device,
    )


def _device_plan(
    spec: ModelSpec,
    sizes: dict[str, int],
    placement: Placement,
    numbers: Numbers,
    device: DeviceMemory,
    expert_options: GpuExpertOptions,
    bfloat16_bytes: int,
) -> DevicePlan:
    def uses(num_blocks: int, *, streams: bool) -> tuple[MemoryRow, ...]:
        return tuple(device_uses(spec, sizes, replace(numbers, streams_experts=streams), num_blocks))

    def with_gpu_experts(*, streams: bool) -> tuple[tuple[MemoryRow, ...], GpuExpertPlan]:
        rows = uses(num_kv_blocks(numbers.cache_lens, numbers.block_tokens), streams=streams)
        free_bytes = device.available_bytes - sum(row.num_bytes for row in rows)
        return rows, plan_gpu_experts(spec, sizes, placement, expert_options, free_bytes)

    num_threads = sum(numbers.threads_per_node)
    # If all experts fit without the buffers, no expert needs to be streamed.
    rows, gpu_experts = with_gpu_experts(streams=False)
    has_host_experts = gpu_experts.num_experts < spec.routing.num_experts * len(spec.routed_layers)
    streams = numbers.streams_experts and has_host_experts
    if streams:
        rows, gpu_experts = with_gpu_experts(streams=True)
    if gpu_experts.num_experts:
        requested_by = "gpu_experts" if expert_options.most is not None else None
        rows = (*rows, MemoryRow("GPU experts", gpu_experts.num_bytes, gpu_experts.detail, requested_by))
    share = estimated_share(num_threads) if expert_options.pcie_share is None else expert_options.pcie_share
    whole = whole_modules(spec, gpu_experts.experts)
    tensors = used_tensors(spec)
    streamed = {name: size for name, size in sizes.items() if tensors[name].module not in whole}
    # A larger cache may displace experts, which are then streamed.
    can_shrink = gpu_experts.fixed_bytes < gpu_experts.num_bytes
    empty = uses(0, streams=streams or (numbers.streams_experts and can_shrink))
    cache = gpu_cache(spec, numbers)
    for_cache = device.available_bytes - gpu_experts.fixed_bytes + cache.num_bytes(0)
    num_blocks = cache.most_blocks(for_cache - sum(use.num_bytes for use in empty))
    return DevicePlan(
        device,
        rows,
        outside_bytes(spec, numbers.max_batch_size),
        num_blocks * numbers.block_tokens,
        estimate(spec, streamed, numbers.isa, num_threads) if streams else None,
        gpu_experts.experts,
        share if has_host_experts else 0.0,
        pcie_share_is_set=expert_options.pcie_share is not None,
        has_host_experts=has_host_experts,
        bfloat16_bytes=bfloat16_bytes,
    )


def whole_modules(spec: ModelSpec, gpu_experts: GpuExperts) -> frozenset[str]:
    """Modules of routed experts without a copy in host memory, because the device holds their whole layer."""
    return frozenset(
        expert_module(layer)
        for layer, ids in zip(spec.routed_layers, gpu_experts, strict=True)
        if len(ids) == spec.routing.num_experts
    )


def _bytes_of(module: str, spec: ModelSpec, sizes: Mapping[str, int]) -> int:
    tensors = used_tensors(spec)
    return sum(size for name, size in sizes.items() if tensors[name].module == module)
