"""Recurrent state in device memory, addressed by the scheduler's slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ballast.model.hybrid.recurrent.sizes import sizes_of
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.latent import IndexSpec
from ballast.model.layers.layer import DeviceAttention, LayerSpec, RecurrentMixer


class LayerStates(NamedTuple):
    """The states of a layer by slot, float32. Slot 0 is not used."""

    recurrent: torch.Tensor  # [slots, heads, key_dim, v_dim]
    inputs: torch.Tensor  # [slots, conv_taps - 1, channels], the last inputs of the convolution


class NgramStates(NamedTuple):
    """The same of a layer with an n-gram embedding."""

    recurrent: torch.Tensor
    inputs: torch.Tensor
    ngram_inputs: torch.Tensor  # [slots, tokens, stream width], the last inputs of the embedding's convolution


class PoolStates(NamedTuple):
    """The states of a layer whose indexer has pools, by slot, float32. Slot 0 is not used."""

    incomplete: torch.Tensor
    """Keys and gates of the last, incomplete pool, [slots, pool - 1, 2, key_dim], or [slots, pool - 1, key_dim] if keys
    have no gates."""


class EntryStates(tuple[torch.Tensor, ...]):
    """The states of a layer with compressed entries, by slot, float32: [slots, window, head_dim], the last keys; if it
    has entries, [slots, parts, 3, head_dim], the sums of incomplete ones; if it selects them, the same of index keys.
    Slot 0 is not used."""


class DeviceStatePool:
    """The states of the layers of one device."""

    def __init__(self, layers: Sequence[LayerSpec], hidden: int, num_slots: int, device: torch.device) -> None:
        """Slot 0, the null slot, is in addition to `num_slots`."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros((num_slots + 1, *shape), device=device)

        def states(layer: LayerSpec) -> LayerStates | NgramStates | PoolStates | EntryStates | None:
            mixer, stream, ngram = layer.mixer, layer.stream, layer.ngram
            if isinstance(mixer, CompressedSpec):
                return entry_states(mixer, num_slots, device)
            if isinstance(mixer, RecurrentMixer):
                sizes = sizes_of(mixer)
                recurrent = zeros(sizes.num_heads, sizes.key_dim, sizes.v_dim)
                inputs = zeros(sizes.conv_taps - 1, sizes.channels)
                if ngram is None or stream is None:
                    return LayerStates(recurrent, inputs)
                return NgramStates(recurrent, inputs, zeros(ngram.kept_inputs, stream.num_rows * hidden))
            index = mixer.index if isinstance(mixer, DeviceAttention) else None
            if index is None or not index.has_indexer or index.pool == 1:
                return None
            parts = (2,) if isinstance(index, IndexSpec) else ()
            return PoolStates(zeros(index.pool - 1, *parts, index.key_dim))

        self.layers = [states(layer) for layer in layers]
        """None for a layer without state."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The states of all layers, in order; each [slots, …]."""
        return [tensor for layer in self.layers if layer is not None for tensor in layer]


def entry_states(mixer: CompressedSpec, num_slots: int, device: torch.device) -> EntryStates:
    """The states of a layer with this mixer: zeros, with the null slot in addition to `num_slots`."""
    shapes: list[tuple[int, ...]] = [(mixer.window, mixer.head_dim)]
    if mixer.ratio:
        shapes.append((mixer.entry_columns // mixer.head_dim, 3, mixer.head_dim))
    if mixer.index is not None:
        shapes.append((mixer.index_columns // mixer.index.key_dim, 3, mixer.index.key_dim))
    return EntryStates(torch.zeros((num_slots + 1, *shape), device=device) for shape in shapes)
