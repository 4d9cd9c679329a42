"""A layer's experts as the device accesses them: copies of some, and the addresses of all in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ballast._core import kernels
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.experts.resident_experts import ResidentExperts
from ballast.model.hybrid.experts.self_check import Kind, kind_of
from ballast.model.hybrid.panels.host_bytes import host_bytes
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, panels_of
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, copy_pieces
from ballast.moe.gpu_experts import GpuExperts

TryOut = Callable[[Sequence[LayerOnDevice], Sequence[kernels.Experts]], list[LayerOnDevice]]
"""Returns the layers unchanged if the device computes them as the CPU does, otherwise layers with nothing on the
device."""


class WholeLayers:
    """Layers with all experts in device memory. They are copied there while the model is loaded, layer by layer, so
    that the host never holds all of them."""

    def __init__(self, gpu_experts: GpuExperts, make: MakeExperts, device: torch.device, try_out: TryOut) -> None:
        """`try_out` is called with the first layer of each combination of types. `gpu_experts` lists every routed
        layer, or is empty."""
        self.placed: dict[int, LayerOnDevice] = {}
        """By index of the routed layer."""
        self._gpu_experts = gpu_experts
        self._make = make
        self._device = device
        self._try_out = try_out
        self._is_right: dict[Kind, bool] = {}
        self._is_wanted: set[int] = set()

    def take(self, index: int, experts: kernels.Experts) -> bool:
        """Copy all experts of the `index`th routed layer to the device, if the plan requests that. Returns whether they
        are on the device and computed as the CPU computes them."""
        if not self._gpu_experts or len(self._gpu_experts[index]) < experts.num_experts:
            return False
        self._is_wanted.add(index)
        kind = kind_of(experts)
        if not self._is_right.get(kind, True):
            return False
        placed = place_experts(experts, self._gpu_experts[index], self._make, self._device, is_readable=False)
        if kind not in self._is_right:
            self._is_right[kind] = self._try_out([placed], [experts])[0].is_whole
        if self._is_right[kind]:
            self.placed[index] = placed
            platform_of(self._device).current_stream().synchronize()  # the source of the copies is freed next
        return self._is_right[kind]

    def left_of(self, index: int) -> Sequence[int]:
        """The experts to copy for a layer that `take` has refused; none if the whole layer should have been taken."""
        return self._gpu_experts[index] if self._gpu_experts and index not in self._is_wanted else ()


def place_experts(
    experts: kernels.Experts,
    gpu_experts: Sequence[int],
    make: MakeExperts,
    device: torch.device,
    *,
    is_readable: bool,
) -> LayerOnDevice:
    """A layer with `gpu_experts`, ascending ids, copied to device memory. `is_readable`: whether the device can read
    the others from host memory."""
    parts, stacks, units = panels_of(experts), [], []
    is_whole = len(gpu_experts) == experts.num_experts
    slots = None
    if gpu_experts:
        slots = torch.full((experts.num_experts,), -1, dtype=torch.int32)
        slots[list(gpu_experts)] = torch.arange(len(gpu_experts), dtype=torch.int32)
        slots = slots.to(device)
        stacks = [_stacks(part, gpu_experts, device) for part in parts]
        units = [part.unit.on(device, gpu_experts) for part in parts]
    return LayerOnDevice(
        gpu_experts=[make(*own, unit=unit) for own, unit in zip(stacks, units, strict=True)],
        slots=slots,
        num_gpu_experts=len(gpu_experts),
        resident=ResidentExperts(parts, stacks, units) if gpu_experts and not is_whole else None,
        across=[make(*_seen(part, device), unit=part.unit.on(device)) for part in parts]
        if is_readable and not is_whole
        else (),
        expert_bytes=sum(part.expert_bytes for part in parts),
        is_whole=is_whole,
    )


def _stacks(part: HostExpertPart, ids: Sequence[int], device: torch.device) -> list[PanelStack]:
    stacks = []
    for panels in part.matrices:
        packed = torch.empty((len(ids), panels.expert_bytes), dtype=torch.uint8, device=device)
        for slot, expert in enumerate(ids):
            copy_pieces(packed[slot], panels, expert * panels.expert_bytes)
        scales = panels.scales_on(device, ids)
        stacks.append(PanelStack(packed, panels.ggml_type, len(ids), panels.rows, panels.cols, scales))
    return stacks


def _seen(part: HostExpertPart, device: torch.device) -> list[PanelStack]:
    return [
        PanelStack(
            host_bytes(panels.data),
            panels.ggml_type,
            panels.num_experts,
            panels.rows,
            panels.cols,
            panels.scales_on(device),
        )
        for panels in part.matrices
    ]
