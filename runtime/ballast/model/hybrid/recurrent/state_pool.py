"""Recurrent state in device memory, addressed by the scheduler's slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ballast.model.hybrid.recurrent.sizes import sizes_of
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import Mixer, RecurrentMixer


class LayerStates(NamedTuple):
    """The states of a layer by slot, float32. Slot 0 is not used."""

    recurrent: torch.Tensor  # [slots, heads, key_dim, v_dim]
    inputs: torch.Tensor  # [slots, conv_taps - 1, channels], the last inputs of the convolution


class PoolStates(NamedTuple):
    """The states of a layer whose indexer has pools, by slot, float32. Slot 0 is not used."""

    incomplete: torch.Tensor  # [slots, pool - 1, 2, key_dim], keys and gates of the last, incomplete pool


class DeviceStatePool:
    """The states of the layers of one device."""

    def __init__(self, mixers: Sequence[Mixer], num_slots: int, device: torch.device) -> None:
        """`mixers`: of each layer. Slot 0, the null slot, is in addition to `num_slots`."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros((num_slots + 1, *shape), device=device)

        def states(mixer: Mixer) -> LayerStates | PoolStates | None:
            if isinstance(mixer, RecurrentMixer):
                sizes = sizes_of(mixer)
                recurrent = zeros(sizes.num_heads, sizes.key_dim, sizes.v_dim)
                return LayerStates(recurrent, zeros(sizes.conv_taps - 1, sizes.channels))
            index = mixer.index if isinstance(mixer, LatentSpec) else None
            if index is None or not index.has_indexer or index.pool == 1:
                return None
            return PoolStates(zeros(index.pool - 1, 2, index.key_dim))

        self.layers = [states(mixer) for mixer in mixers]
        """None for a layer without state."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The states of all layers, in order; each [slots, …]."""
        return [tensor for layer in self.layers if layer is not None for tensor in layer]
