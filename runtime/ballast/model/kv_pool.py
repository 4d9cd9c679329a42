"""The memory behind the scheduler's block ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def num_kv_blocks(cache_lens: int, block_tokens: int) -> int:
    """The number of usable blocks for `cache_lens` tokens, rounded up."""
    return -(-cache_lens // block_tokens)


class KvPool:
    """One latent row per token and layer: the normed latent, then the rotated key (DeepSeek-V2, arXiv 2405.04434 §2.1).

    Slot s belongs to block s // block_tokens; block 0, the null block, comes on top of `num_blocks`. Pages are
    taken from the system when first written.
    """

    def __init__(self, num_layers: int, num_blocks: int, block_tokens: int, latent_dim: int) -> None:
        num_slots = (num_blocks + 1) * block_tokens
        self.block_tokens = block_tokens
        self.layers: list[NDArray[np.float32]] = [  # each [slots, latent_dim]
            np.zeros((num_slots, latent_dim), dtype=np.float32) for _ in range(num_layers)
        ]
