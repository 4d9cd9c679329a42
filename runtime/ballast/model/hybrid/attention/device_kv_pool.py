"""The KV cache in device memory, addressed by the scheduler's block ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ballast.model.layers.plane import INDEX_KEYS, Plane, row_bytes
from ballast.model.layers.short_rows import LARGEST


class LayerCache(NamedTuple):
    """The data of a layer, one row per slot."""

    rows: torch.Tensor  # [slots, width]: the KV components that attention reads, adjacent; or uint8, see `ShortRows`
    index_keys: torch.Tensor | None  # [slots, key_dim], if the layer has an indexer; key_dim / pool with pools
    incomplete_pools: torch.Tensor | None = None  # float32 [state slots, pool - 1, 2, key_dim], see `PoolMemory`


def largest_number(cache_type: torch.dtype) -> float:
    """The largest number that a cache holds."""
    return LARGEST if cache_type in (torch.float8_e4m3fn, torch.uint8) else torch.finfo(cache_type).max


class DeviceKvPool:
    """One row per token and layer. It holds the KV components that attention reads, so that one gather reads a token's
    data. Index keys are in a separate tensor, because they are read for many more tokens.

    Slot s belongs to block s // block_tokens; block 0, the null block, is in addition to `num_blocks`. Layers with a
    window may have fewer blocks, with ids of their own.
    """

    def __init__(
        self,
        planes: Sequence[Sequence[Plane]],
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        num_window_blocks: int | None = None,
    ) -> None:
        """`planes`: the KV components of each layer, none of a recurrent one; all of a layer have the same window, and
        none are index keys in a cache of float8_e4m3fn.
        `num_window_blocks`: number of usable blocks of layers with a window; None: `num_blocks`."""
        num_windowed = num_blocks if num_window_blocks is None else num_window_blocks
        self.block_tokens = block_tokens
        self._dtype = dtype

        self.layers: list[LayerCache] = []
        self._has_window: list[bool] = []
        for of_layer in planes:
            [window] = {plane.window for plane in of_layer} or {None}
            self._has_window.append(window is not None and num_window_blocks is not None)
            num_slots = ((num_blocks if window is None else num_windowed) + 1) * block_tokens

            def rows(width: int, num_slots: int = num_slots) -> torch.Tensor:
                kept_as = torch.uint8 if dtype == torch.float8_e4m3fn else dtype
                return torch.zeros((num_slots, width), dtype=kept_as, device=device)

            read_together = [plane for plane in of_layer if plane.name != INDEX_KEYS]
            index_keys = [rows(plane.width) for plane in of_layer if plane.name == INDEX_KEYS]
            width = sum(plane.width for plane in read_together)
            if dtype == torch.float8_e4m3fn:
                width = row_bytes(read_together, "fp8")
            self.layers.append(LayerCache(rows(width), index_keys[0] if index_keys else None))

    @property
    def has_windows(self) -> list[bool]:
        """Of each of `tensors`, whether its blocks are those of windows."""
        return [
            has_window
            for layer, has_window in zip(self.layers, self._has_window, strict=True)
            for tensor in layer
            if tensor is not None and tensor.shape[1]
        ]

    @property
    def largest(self) -> float:
        """The largest number that the cache holds."""
        return largest_number(self._dtype)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of all layers, in order; each [slots, row width]."""
        return [tensor for layer in self.layers for tensor in layer if tensor is not None and tensor.shape[1]]
