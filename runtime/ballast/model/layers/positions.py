"""The rotation of queries and keys by their positions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class YarnSpec:
    """YaRN context extension (arXiv 2309.00071)."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Multiplies cos and sin: mscale(factor, mscale) / mscale(factor, mscale_all_dim); 1 for V3 and R1."""
    mscale_all_dim: float
    """Softmax scale is multiplied by (0.1 · mscale_all_dim · ln factor + 1)². 0: no correction."""
    is_rounded: bool = True
    """Whether the pairs between which the ramp runs are rounded outwards."""


@dataclass(frozen=True, slots=True)
class QueryScale:
    """Multiplies the queries of position p by 1 + beta · ln(1 + ⌊p / length⌋), as in Llama 4."""

    beta: float
    length: int
    """Positions whose queries keep their size."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The rotation of the entries of a head."""

    dim: int
    """Entries that are rotated."""
    theta: float
    yarn: YarnSpec | None
    has_factors: bool = False
    """Whether the model's tensor `rope_freqs.weight` divides the frequencies, its first entry that of the first pair.
    """
    query_scale: QueryScale | None = None
    """The factor of queries by their position, which latent attention alone may have; None: 1."""


NO_ROPE = RopeSpec(dim=0, theta=1.0, yarn=None)
"""Of layers that rotate nothing, without the number of entries that others would rotate."""
