"""Routed experts brought to where the device computes them: some into its memory, all of them by their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from ballast._core import kernels
from ballast.model.hybrid.experts.divided import LayerOnDevice
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, HostPanels, panels_of
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, copy_pieces


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
