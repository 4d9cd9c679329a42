"""The memory behind the scheduler's block ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballast.model.layers.plane import Plane


def num_kv_blocks(cache_lens: int, block_tokens: int) -> int:
    """The number of usable blocks for `cache_lens` tokens, rounded up."""
    return -(-cache_lens // block_tokens)


class KvPool:
    """The planes of every layer: rows of float32, one of each token.

    Slot s belongs to block s // block_tokens; block 0, the null block, comes on top of `num_blocks`. Pages are
    taken from the system when first written.
    """

    def __init__(self, planes: Sequence[Sequence[Plane]], num_blocks: int, block_tokens: int) -> None:
        """`planes`: of each layer."""
        num_slots = (num_blocks + 1) * block_tokens
        self.block_tokens = block_tokens
        self.layers: list[list[NDArray[np.float32]]] = [  # of each, its planes [slots, width]
            [np.zeros((num_slots, plane.width), dtype=np.float32) for plane in of_layer] for of_layer in planes
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for planes in self.layers for plane in planes)
