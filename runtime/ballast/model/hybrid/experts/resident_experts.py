"""A layer's experts in device memory, which others can replace while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import ExpertUnit, HostUnit
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, HostPanels
from ballast.model.hybrid.streaming.streamed_experts import copy_pieces


class ResidentExperts:
    """The slots of one layer. Kernels read the same memory, by slot."""

    def __init__(
        self,
        parts: Sequence[HostExpertPart],
        stacks: Sequence[Sequence[PanelStack]],
        units: Sequence[ExpertUnit],
    ) -> None:
        """`parts`: all experts in host memory. `stacks`: gate, up and down of each part, and `units`: what each
        computes, in device memory by slot."""
        self._parts = parts
        self._stacks = stacks
        self._units = units

    def write(self, slot: int, expert: int) -> None:
        """Queue the copy of an expert in host memory to a slot, on the current stream. No step that runs meanwhile may
        use the slot."""
        for part, stacks, unit in zip(self._parts, self._stacks, self._units, strict=True):
            for panels, stack in zip(part.matrices, stacks, strict=True):
                packed = stack.packed.view(stack.num_experts, -1)[slot]
                copy_pieces(packed, panels, expert * panels.expert_bytes)
                _write_scale(panels, stack, slot, expert)
            for host, bias in _biases(part.unit, unit):
                bias[slot].copy_(torch.from_numpy(np.ascontiguousarray(host[expert])), non_blocking=True)


def _write_scale(panels: HostPanels, stack: PanelStack, slot: int, expert: int) -> None:
    if stack.scales is not None and panels.scales.size > 1:  # one scale is that of all experts
        scale = torch.from_numpy(panels.scales[expert : expert + 1].copy())
        stack.scales[slot : slot + 1].copy_(scale, non_blocking=True)


def _biases(host: HostUnit, unit: ExpertUnit) -> Iterator[tuple[NDArray[np.float32], torch.Tensor]]:
    """The biases in host memory, [E, rows], with those in device memory, [slots, rows]."""
    pairs = (
        (host.gate_bias, unit.gate_bias),
        (host.up_bias, unit.up_bias),
        (host.down_bias, unit.down_bias),
    )
    for of_host, of_slots in pairs:
        if of_host is not None and of_slots is not None:
            yield of_host, of_slots
