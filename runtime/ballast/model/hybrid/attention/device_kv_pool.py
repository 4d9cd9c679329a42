"""The KV cache in device memory, addressed by the scheduler's block ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast.model.spec import Plane


class DeviceKvPool:
    """One row per token and layer, in which the layer's planes lie side by side: one gather finds all of a token.

    Slot s belongs to block s // block_tokens; block 0, the null block, comes on top of `num_blocks`.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_tokens: int,
        planes: Sequence[Plane],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_slots = (num_blocks + 1) * block_tokens
        width = sum(plane.width for plane in planes)
        self.block_tokens = block_tokens
        self.layers = [  # each [slots, width]
            torch.zeros((num_slots, width), dtype=dtype, device=device) for _ in range(num_layers)
        ]
