"""Divides a model's layers among GPUs: a contiguous range for each. Pure arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ballast.errors import ConfigError
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.layer_ranges import may_begin
from ballast.model.spec import ModelSpec
from ballast.model.tensors import routed_bytes, used_tensors
from ballast.plan.gpus.device import computes_on_gpu, device_uses, gpu_cache, hybrid_bytes
from ballast.plan.gpus.device_layers import DeviceLayers
from ballast.plan.gpus.gpu_experts import UNSPENT_BYTES, GpuExpertOptions
from ballast.plan.memory import DeviceMemory, Numbers
from ballast.weights.gguf import GgufModel


def layer_ranges(
    gguf: GgufModel,
    spec: ModelSpec,
    numbers: Numbers,
    devices: Sequence[DeviceMemory],
    expert_options: GpuExpertOptions,
    split: Sequence[int] | None = None,
) -> list[range]:
    """The layers of each device. `split`: the ratio of their numbers; None: such that everything fits, that devices
    have equal bytes of experts in host memory, and that their memory is equally full, in this order. Raises ConfigError
    if there are too many devices."""
    if len(devices) == 1:
        return [range(spec.num_layers)]
    begins = [layer for layer in range(1, spec.num_layers) if may_begin(spec, layer)]
    if len(devices) > len(begins) + 1:
        names = ",".join(each.name for each in devices)
        most = len(begins) + 1
        problem = f"names {len(devices)} GPUs, and the model's {spec.num_layers} layers can be divided among {most}"
        raise ConfigError("device", names, f"{problem}; name at most {most}")
    if split is not None:
        bounds = _bounds_by_ratio(begins, spec.num_layers, split)
    else:
        bounds = _best_bounds(_Costs.of(gguf, spec, numbers, devices, expert_options), begins)
    return [range(*ends) for ends in itertools.pairwise((0, *bounds, spec.num_layers))]


def _bounds_by_ratio(begins: Sequence[int], num_layers: int, split: Sequence[int]) -> list[int]:
    """The first layer of each device but the first, ascending: those of `begins` that are closest to the ratio."""
    bounds: list[int] = []
    sums = list(itertools.accumulate(split))
    for index, before in enumerate(sums[:-1]):
        left = len(sums) - 2 - index  # bounds that follow
        free = [begin for begin in begins[: len(begins) - left] if not bounds or begin > bounds[-1]]
        bounds.append(min(free, key=lambda begin: abs(begin * sums[-1] - before * num_layers)))
    return bounds


class _Cost(NamedTuple):
    """How bad a range of layers is for a device. Of two divisions, the one with the lower maximum of the first field is
    better; if these are equal, that of the second field decides, and so on."""

    missing_bytes: float
    """Missing memory."""
    host_bytes: float
    """Bytes of experts in host memory."""
    fullness: float
    """Fraction of memory in use."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """The costs of ranges of layers on each device. Sums of bytes are those of the layers before each layer."""

    available: Sequence[int]
    fixed: int
    """Most bytes that any range of layers takes in addition to that of each layer."""
    kept: Sequence[int]
    """Sums of dense weights and cache."""
    experts: Sequence[int]
    """Sums of routed experts."""
    resident_share: float | None
    """Fraction of the experts in GPU memory; None: as many as fit."""

    @staticmethod
    def of(
        gguf: GgufModel,
        spec: ModelSpec,
        numbers: Numbers,
        devices: Sequence[DeviceMemory],
        expert_options: GpuExpertOptions,
    ) -> _Costs:
        sizes = {name: size for name, _, size in hybrid_bytes(gguf, spec, numbers.isa, numbers.threads_per_node)}
        num_blocks = num_kv_blocks(numbers.cache_lens, numbers.block_tokens)
        kept = _kept_bytes(spec, sizes, numbers, num_blocks)
        of_layer = routed_bytes(spec, sizes)
        uses = device_uses(DeviceLayers(spec, range(spec.num_layers)), sizes, numbers, num_blocks)
        num_experts = spec.routing.num_experts * len(spec.routed_layers)
        return _Costs(
            available=[each.available_bytes for each in devices],
            fixed=max(0, sum(use.num_bytes for use in uses) - sum(kept)),
            kept=[0, *itertools.accumulate(kept)],
            experts=[0, *itertools.accumulate(of_layer.get(layer, 0) for layer in range(spec.num_layers))],
            resident_share=None if expert_options.most is None else min(1.0, expert_options.most / num_experts),
        )

    def of_range(self, number: int, begin: int, end: int) -> _Cost:
        """The cost of layers begin … end - 1 for the device with this number."""
        available, experts = self.available[number], self.experts[end] - self.experts[begin]
        needed: float = self.fixed + self.kept[end] - self.kept[begin]
        if self.resident_share is None:
            resident: float = min(experts, max(0, available - needed - UNSPENT_BYTES))
        else:
            resident = self.resident_share * experts
        needed += resident
        return _Cost(max(0.0, needed - available), experts - resident, needed / max(1, available))


def _kept_bytes(spec: ModelSpec, sizes: Mapping[str, int], numbers: Numbers, num_blocks: int) -> list[int]:
    """Bytes of the dense weights and of the cache, by layer."""
    tensors = used_tensors(spec)
    found = []
    for layer in range(spec.num_layers):
        own = DeviceLayers(spec, range(layer, layer + 1))
        cache = gpu_cache(own, numbers)
        found.append(cache.num_bytes(num_blocks) + cache.state_bytes(num_blocks))
    for name, size in sizes.items():
        if computes_on_gpu(tensors[name]):
            found[DeviceLayers.layer_of(spec, tensors[name].module)] += size
    return found


def _best_bounds(costs: _Costs, begins: Sequence[int]) -> list[int]:
    """The first layer of each device but the first, of the division with the lowest cost. There is one search for each
    field of the cost; each keeps to the maxima that the searches before have found."""
    limits: list[float] = []
    bounds: list[int] = []
    for _ in _Cost._fields:
        lowest, bounds = _lowest_maximum(costs, begins, limits)
        limits.append(lowest)
    return bounds


def _lowest_maximum(costs: _Costs, begins: Sequence[int], limits: Sequence[float]) -> tuple[float, list[int]]:
    """The lowest possible maximum, over all devices, of the field that follows those with `limits`, which no device may
    exceed; and the bounds of a division with it. Each entry of `best` is that of the layers before one, divided among
    the devices so far."""
    num_layers, last = len(costs.kept) - 1, len(costs.available) - 1
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for number in range(last + 1):
        found: dict[int, tuple[float, list[int]]] = {}
        for end in [num_layers] if number == last else begins:
            for begin, (highest, bounds) in best.items():
                if begin >= end:
                    continue
                cost = costs.of_range(number, begin, end)
                if all(value <= limit for value, limit in zip(cost, limits, strict=False)):
                    divided = max(highest, cost[len(limits)]), bounds if begin == 0 else [*bounds, begin]
                    found[end] = min(found.get(end, divided), divided)
        best = found
    return best[num_layers]
