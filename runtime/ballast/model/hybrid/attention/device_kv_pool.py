"""The KV cache in device memory, addressed by the scheduler's block ids."""

from __future__ import annotations

import torch


class DeviceKvPool:
    """One latent row per token and layer: the normed latent, then the rotated key.

    Slot s belongs to block s // block_tokens; block 0, the null block, comes on top of `num_blocks`.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_tokens: int,
        latent_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_slots = (num_blocks + 1) * block_tokens
        self.block_tokens = block_tokens
        self.layers = [  # each [slots, latent_dim]
            torch.zeros((num_slots, latent_dim), dtype=dtype, device=device) for _ in range(num_layers)
        ]
