"""The KV cache in device memory, addressed by the scheduler's block ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ballast.model.layers.plane import INDEX_KEYS, Plane


class LayerCache(NamedTuple):
    """The data of a layer, one row per slot."""

    rows: torch.Tensor  # [slots, width]: the KV components that attention reads, adjacent
    index_keys: torch.Tensor | None  # [slots, key_dim], if the layer has an indexer


class DeviceKvPool:
    """One row per token and layer. It holds the KV components that attention reads, so that one gather reads a token's
    data. Index keys are in a separate tensor, because they are read for many more tokens.

    Slot s belongs to block s // block_tokens; block 0, the null block, is in addition to `num_blocks`.
    """

    def __init__(
        self,
        planes: Sequence[Sequence[Plane]],
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`planes`: the KV components of each layer."""
        num_slots = (num_blocks + 1) * block_tokens
        self.block_tokens = block_tokens

        def rows(width: int) -> torch.Tensor:
            return torch.zeros((num_slots, width), dtype=dtype, device=device)

        self.layers: list[LayerCache] = []
        for of_layer in planes:
            widths = {plane.name: plane.width for plane in of_layer}
            index_width = widths.pop(INDEX_KEYS, None)
            self.layers.append(
                LayerCache(rows(sum(widths.values())), None if index_width is None else rows(index_width))
            )

    @property
    def dtype(self) -> torch.dtype:
        """The type of all numbers in the cache."""
        return self.layers[0].rows.dtype

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of all layers, in order; each [slots, row width]."""
        return [tensor for layer in self.layers for tensor in layer if tensor is not None]
