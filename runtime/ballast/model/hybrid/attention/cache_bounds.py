"""The largest numbers that a layer can put into its cache, whatever the tokens. Pure.

A norm's output is its weights times a vector whose length is at most √D, the root of its width: so a latent's entry is
at most its weight times √kv_lora_rank. A key is a product of the layer's norm, and nothing norms it: by Cauchy and
Schwarz an entry is at most √D times the length of its row, each column times its weight of the norm. A rotation carries
two entries into each other, so that either may come to the length of both.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def largest_latent(norm: NDArray[np.float32]) -> float:
    """norm [kv_lora_rank]: the weights of the latent's norm."""
    return math.sqrt(norm.size) * float(np.abs(norm).max())


def largest_key(norm: NDArray[np.float32], rows: NDArray[np.float32], rotation: float) -> float:
    """norm [D]: the weights of the layer's norm; rows [rope_dim, D]: of the projection to the key; `rotation`: what a
    rotation multiplies lengths by."""
    with np.errstate(invalid="ignore"):  # a file may hold infinities
        squares = np.square(rows.astype(np.float64) * norm).sum(1)
    of_pairs = squares[0::2] + squares[1::2]
    return rotation * math.sqrt(norm.size * float(of_pairs.max()))
