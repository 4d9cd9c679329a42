"""The memory plan of a model with GPUs, which hold everything but routed experts, and as many of those as fit. Nothing
is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ballast.host.machine import Memory
from ballast.model.hybrid.copies.exchange_sizes import exchange_bytes
from ballast.model.kept_weights import kept_weights
from ballast.model.kv_pool import kept_type, num_kv_blocks
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expert_module, used_tensors
from ballast.moe.device_rules import NO_RULES, Placement
from ballast.moe.gpu_experts import GpuExperts
from ballast.plan.gpus.device import (
    HOST_PROGRAM_BYTES,
    compared_on_gpu,
    computes_on_gpu,
    device_uses,
    gpu_cache,
    hybrid_bytes,
    kv_row_bytes,
    outside_bytes,
    rotation_bytes,
    staging_bytes,
)
from ballast.plan.gpus.device_layers import DeviceLayers
from ballast.plan.gpus.gpu_experts import (
    GpuExpertOptions,
    GpuExpertPlan,
    estimated_share,
    plan_gpu_experts,
)
from ballast.plan.kv_tiers import host_rows
from ballast.plan.memory import DeviceMemory, DevicePlan, GpuPlan, MemoryPlan, Numbers
from ballast.plan.rows import MemoryRow, PackedFolder, host_weight_rows, table_rows, weight_rows
from ballast.plan.streaming import estimate
from ballast.weights.gguf import GgufModel

NO_EXPERTS = GpuExpertOptions()
"""No experts in a GPU's memory, and none read across PCIe."""


def make_hybrid_plan(
    gguf: GgufModel,
    spec: ModelSpec,
    numbers: Numbers,
    memory: Memory,
    devices: Sequence[DeviceMemory],
    expert_options: GpuExpertOptions = NO_EXPERTS,
    folder: PackedFolder | None = None,
    placement: Placement = NO_RULES,
    ranges: Sequence[range] | None = None,
) -> MemoryPlan:
    """As `host.make_plan`, for a model whose routed experts run on the CPU and the rest on GPUs. `ranges`: the layers
    of each device, in order; None: there is one device, which has all. Pure."""
    ranges = [range(spec.num_layers)] if ranges is None else ranges
    owners = [DeviceLayers(spec, layers) for layers in ranges]
    tensors = used_tensors(spec)
    sources = list(hybrid_bytes(gguf, spec, numbers.isa, numbers.threads_per_node))
    sizes = {name: size for name, _, size in sources}
    as_bfloat16 = sum(
        math.prod(gguf.tensors[source].shape) * 2 for name, source, _ in sources if computes_on_gpu(tensors[name])
    )
    gpus = _gpu_plan(spec, sizes, placement, numbers, list(zip(devices, owners, strict=True)), expert_options)
    gpus = replace(gpus, bfloat16_bytes=as_bfloat16)
    names = ", ".join(each.name for each in devices)
    whole = whole_modules(spec, gpus.gpu_experts)
    host_modules = {tensor.module for tensor in tensors.values() if not computes_on_gpu(tensor)}

    def device_of(module: str) -> str:
        if module in host_modules and module not in whole:
            return "cpu"
        return next(memory.name for memory, owner in zip(devices, owners, strict=True) if owner.has_module(module))

    weights = tuple(weight_rows(gguf, spec, device_of, {name: (source, size) for name, source, size in sources}))
    in_host = sum(row.num_bytes for row in weights if row.device == "cpu")
    kept = kept_weights(gguf, spec, numbers.isa, numbers.threads_per_node, on_gpu=True, gpu_experts=gpus.gpu_experts)
    packed = "routed experts, packed while loading; " if gpus.has_host_experts else ""
    uses = (
        *host_weight_rows(in_host, f"{packed}embedding in page cache", kept, folder),
        MemoryRow(
            "work buffers",
            _staging_bytes(spec, sizes, numbers, gpus)
            + max((_bytes_of(module, spec, sizes) for module in whole), default=0),
            f"activations of {numbers.step_tokens} tokens in transit; while loading, the next tensor for {names}",
            numbers.step_option,
        ),
        *table_rows(gguf, spec),
        *_tier_rows(spec, numbers),
        MemoryRow("program", HOST_PROGRAM_BYTES, "Python, torch, CUDA's libraries, vocabulary; an estimate"),
    )
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        placement=compared_on_gpu(placement, host_modules),
        max_cache_lens=0,
        numbers=numbers,
        gpus=gpus,
    )


def _staging_bytes(spec: ModelSpec, sizes: Mapping[str, int], numbers: Numbers, gpus: GpuPlan) -> int:
    """Host memory for activations in transit, and for loading."""
    num_bytes = staging_bytes(spec, sizes, numbers.step_tokens, len(numbers.threads_per_node))
    if gpus.streaming is not None and len(gpus.devices) > 1:  # whether GPUs access each other is not known here
        num_bytes += len(gpus.devices) * exchange_bytes(spec, numbers.step_tokens)
    return num_bytes


def _tier_rows(spec: ModelSpec, numbers: Numbers) -> Iterator[MemoryRow]:
    """Host memory of the tiers of the GPUs' cache."""
    block_bytes = numbers.block_tokens * kv_row_bytes(spec, kept_type(numbers.kv_type, on_gpu=True))
    return host_rows(numbers.tiers, block_bytes, numbers.block_tokens, spec.state_bytes)


def _gpu_plan(
    spec: ModelSpec,
    sizes: dict[str, int],
    placement: Placement,
    numbers: Numbers,
    devices: Sequence[tuple[DeviceMemory, DeviceLayers]],
    expert_options: GpuExpertOptions,
) -> GpuPlan:
    num_threads, num_all = sum(numbers.threads_per_node), spec.routing.num_experts * len(spec.routed_layers)

    def planned(*, streams: bool) -> list[_DeviceUses]:
        found: list[_DeviceUses] = []
        for number, (memory, own) in enumerate(devices):
            most = expert_options.most
            if most is not None:  # each device has the same fraction of the experts of its layers
                left = most - sum(each.gpu_experts.num_experts for each in found)
                num_layers = [len(each.routed) for _, each in devices[number:]]
                most = max(0, left) * num_layers[0] // max(1, sum(num_layers))
            options = replace(expert_options, most=most)
            found.append(
                _device_uses(memory, own, sizes, placement, replace(numbers, streams_experts=streams), options)
            )
        return found

    # If all experts fit without the buffers, no expert needs to be streamed.
    found = planned(streams=False)
    has_host_experts = sum(each.gpu_experts.num_experts for each in found) < num_all
    streams = numbers.streams_experts and has_host_experts
    if streams:
        found = planned(streams=True)
    experts = tuple(
        next((ids for ids in of_layer if ids), ())
        for of_layer in zip(*(each.gpu_experts.experts for each in found), strict=True)
    )
    share = estimated_share(num_threads) if expert_options.pcie_share is None else expert_options.pcie_share
    tensors = used_tensors(spec)
    num_experts = spec.routing.num_experts
    in_host = {
        expert_module(layer): num_experts - len(ids) for layer, ids in zip(spec.routed_layers, experts, strict=True)
    }
    streamed = {  # a pass copies no expert that is in GPU memory
        name: size * in_host.get(tensors[name].module, num_experts) // num_experts for name, size in sizes.items()
    }
    return GpuPlan(
        tuple(each.plan(streams=streams or (numbers.streams_experts and each.can_shrink)) for each in found),
        estimate(spec, streamed, numbers.isa, num_threads, expert_options.pcie, len(devices)) if streams else None,
        experts,
        expert_options.updates and any(0 < len(ids) < spec.routing.num_experts for ids in experts),
        expert_options.uses,
        share if has_host_experts else 0.0,
        pcie_share_is_set=expert_options.pcie_share is not None,
        has_host_experts=has_host_experts,
    )


@dataclass(frozen=True, slots=True)
class _DeviceUses:
    """The uses of a device's memory, with the experts that fit."""

    memory: DeviceMemory
    own: DeviceLayers
    sizes: dict[str, int]
    numbers: Numbers
    rows: tuple[MemoryRow, ...]
    gpu_experts: GpuExpertPlan

    @property
    def can_shrink(self) -> bool:
        """Whether a larger cache may displace experts, which are then streamed."""
        return self.gpu_experts.fixed_bytes < self.gpu_experts.num_bytes

    def plan(self, *, streams: bool) -> DevicePlan:
        """The plan. `streams`: whether experts are streamed if the cache is as large as possible."""
        numbers = replace(self.numbers, streams_experts=streams)
        without_cache = sum(use.num_bytes for use in device_uses(self.own, self.sizes, numbers, 0))
        cache = gpu_cache(self.own, numbers)
        without_cache -= cache.num_bytes(0) + cache.state_bytes(0)
        num_bytes = self.memory.available_bytes - self.gpu_experts.fixed_bytes - without_cache
        num_blocks = cache.most_blocks(
            num_bytes, lambda num_blocks: rotation_bytes(self.own, num_blocks * numbers.block_tokens)
        )
        return DevicePlan(
            self.memory,
            self.own.layers,
            self.rows,
            outside_bytes(self.own, numbers.max_batch_size),
            num_blocks * numbers.block_tokens,
        )


def _device_uses(
    memory: DeviceMemory,
    own: DeviceLayers,
    sizes: dict[str, int],
    placement: Placement,
    numbers: Numbers,
    expert_options: GpuExpertOptions,
) -> _DeviceUses:
    rows = tuple(device_uses(own, sizes, numbers, num_kv_blocks(numbers.cache_lens, numbers.block_tokens)))
    free_bytes = memory.available_bytes - sum(row.num_bytes for row in rows)
    gpu_experts = plan_gpu_experts(own.spec, sizes, placement, expert_options, free_bytes, own.routed)
    if gpu_experts.num_experts:
        requested_by = "gpu_experts" if expert_options.most is not None else None
        rows = (*rows, MemoryRow("GPU experts", gpu_experts.num_bytes, gpu_experts.detail, requested_by))
    return _DeviceUses(memory, own, sizes, numbers, rows, gpu_experts)


def whole_modules(spec: ModelSpec, gpu_experts: GpuExperts) -> frozenset[str]:
    """Modules of routed experts without a copy in host memory, because a GPU holds their whole layer."""
    return frozenset(
        expert_module(layer)
        for layer, ids in zip(spec.routed_layers, gpu_experts, strict=True)
        if len(ids) == spec.routing.num_experts
    )


def _bytes_of(module: str, spec: ModelSpec, sizes: Mapping[str, int]) -> int:
    tensors = used_tensors(spec)
    return sum(size for name, size in sizes.items() if tensors[name].module == module)
