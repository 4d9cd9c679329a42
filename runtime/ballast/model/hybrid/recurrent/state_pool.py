"""Recurrent state in device memory, addressed by the scheduler's slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ballast.model.hybrid.recurrent.sizes import RecurrentSizes, sizes_of
from ballast.model.layers.layer import Mixer, RecurrentMixer


class LayerStates(NamedTuple):
    """The states of a layer by slot, float32. Slot 0 is not used."""

    recurrent: torch.Tensor  # [slots, heads, key_dim, v_dim]
    inputs: torch.Tensor  # [slots, conv_taps - 1, channels], the last inputs of the convolution


class DeviceStatePool:
    """The states of the layers of one device."""

    def __init__(self, mixers: Sequence[Mixer], num_slots: int, device: torch.device) -> None:
        """`mixers`: of each layer. Slot 0, the null slot, is in addition to `num_slots`."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros((num_slots + 1, *shape), device=device)

        def states(sizes: RecurrentSizes) -> LayerStates:
            recurrent = zeros(sizes.num_heads, sizes.key_dim, sizes.v_dim)
            return LayerStates(recurrent, zeros(sizes.conv_taps - 1, sizes.channels))

        self.layers: list[LayerStates | None] = [
            states(sizes_of(mixer)) if isinstance(mixer, RecurrentMixer) else None for mixer in mixers
        ]
        """None for a layer without state."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The states of all layers, in order; each [slots, …]."""
        return [tensor for layer in self.layers if layer is not None for tensor in layer]
