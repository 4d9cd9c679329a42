"""Routed experts brought to where the device computes them: some into its memory, all of them by their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from ballast._core import kernels
from ballast.model.hybrid.experts.check import Kind, kind_of
from ballast.model.hybrid.experts.divided import LayerOnDevice
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, HostPanels, panels_of
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, copy_pieces
from ballast.moe.residents import Residents

TryOut = Callable[[Sequence[LayerOnDevice], Sequence[kernels.Experts]], list[LayerOnDevice]]
"""The layers as they are where the device computes them as the CPU does, else with nothing on the device."""


class WholeLayers:
    """Layers whose experts all lie in the device's memory. They are brought there while the model is loaded, layer by
    layer, so that the host need not keep them."""

    def __init__(self, residents: Residents, make: MakeExperts, device: torch.device, try_out: TryOut) -> None:
        """`try_out` is asked of the first layer of each combination of types. `residents`: of all layers, or none."""
        self.placed: dict[int, LayerOnDevice] = {}
        """By routed layer."""
        self._residents = residents
        self._make = make
        self._device = device
        self._try_out = try_out
        self._is_right: dict[Kind, bool] = {}
        self._is_wanted: set[int] = set()

    def take(self, index: int, experts: kernels.Experts) -> bool:
        """Whether the device now has all that is wanted of the `index`th routed layer, and computes it as the CPU."""
        if not self._residents or len(self._residents[index]) < experts.num_experts:
            return False
        self._is_wanted.add(index)
        kind = kind_of(experts)
        if not self._is_right.get(kind, True):
            return False
        placed = place_experts(experts, self._residents[index], self._make, self._device, is_readable=False)
        if kind not in self._is_right:
            self._is_right[kind] = self._try_out([placed], [experts])[0].is_whole
        if self._is_right[kind]:
            self.placed[index] = placed
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()  # what is copied from goes away
        return self._is_right[kind]

    def left_of(self, index: int) -> Sequence[int]:
        """The experts wanted of a layer that was not taken: none of one that should have been."""
        return self._residents[index] if self._residents and index not in self._is_wanted else ()


def place_experts(
    experts: kernels.Experts,
    resident: Sequence[int],
    make: MakeExperts,
    device: torch.device,
    *,
    is_readable: bool,
) -> LayerOnDevice:
    """A layer with its experts `resident`, ascending ids, in the device's memory. `is_readable`: the device reads host
    memory where the others lie."""
    parts = panels_of(experts)
    is_whole = len(resident) == experts.num_experts
    slots = None
    if resident:
        slots = torch.full((experts.num_experts,), -1, dtype=torch.int32)
        slots[list(resident)] = torch.arange(len(resident), dtype=torch.int32)
        slots = slots.to(device)
    return LayerOnDevice(
        resident=[make(*_stacks(part, resident, device)) for part in parts] if resident else (),
        slots=slots,
        num_resident=len(resident),
        across=[make(*_seen(part)) for part in parts] if is_readable and not is_whole else (),
        expert_bytes=sum(part.expert_bytes for part in parts),
        is_whole=is_whole,
    )


def _stacks(part: HostExpertPart, ids: Sequence[int], device: torch.device) -> list[PanelStack]:
    stacks = []
    for panels in (part.gate, part.up, part.down):
        packed = torch.empty((len(ids), panels.expert_bytes), dtype=torch.uint8, device=device)
        for slot, expert in enumerate(ids):
            copy_pieces(packed[slot], panels, expert * panels.expert_bytes)
        stacks.append(PanelStack(packed, panels.ggml_type, len(ids), panels.rows, panels.cols))
    return stacks


def _seen(part: HostExpertPart) -> list[PanelStack]:
    return [
        PanelStack(_bytes(panels), panels.ggml_type, panels.num_experts, panels.rows, panels.cols)
        for panels in (part.gate, part.up, part.down)
    ]


def _bytes(panels: HostPanels) -> torch.Tensor:
    """Where they lie; the experts must outlive it."""
    memory = (ctypes.c_uint8 * panels.data.size).from_address(panels.address)
    return torch.frombuffer(memory, dtype=torch.uint8)
