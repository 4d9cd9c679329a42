"""Sizes of a model's attention, and the positions of keys and values in a row of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.layers.short_rows import ShortRows


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Latent attention in its absorbed form: all heads share one key, which consists of a latent and a rotated part.
    The latent is also the value."""

    num_heads: int
    rank: int
    """kv_lora_rank, the width of the latents."""
    rope_dim: int
    scale: float
    """The factor of attention scores."""
    block_tokens: int
    is_short: bool = False
    """Whether the cache has 8 bits per number; see `ShortRows`."""

    @property
    def num_kv_heads(self) -> int:
        """Number of heads in the cache."""
        return 1

    @property
    def window(self) -> None:
        """A token attends to all previous ones."""
        return None

    @property
    def has_sinks(self) -> bool:
        """Heads have no sinks."""
        return False

    @property
    def key_dim(self) -> int:
        """Width of a query and of a key."""
        return self.rank + self.rope_dim

    @property
    def v_dim(self) -> int:
        """Width of a value."""
        return self.rank

    @property
    def row_width(self) -> int:
        """Numbers per token in a layer's cache."""
        return self.key_dim

    @property
    def values_at(self) -> int:
        """Offset of the values in a row; its keys begin at 0."""
        return 0

    @property
    def short_rows(self) -> ShortRows:
        """The layout of rows in 8 bits."""
        return ShortRows.of_latents(self.rank, self.rope_dim)

    def __str__(self) -> str:
        return f"latents of {self.rank} + {self.rope_dim} numbers{' in 8 bits' if self.is_short else ''}"


@dataclass(frozen=True, slots=True)
class GroupedSizes:
    """Grouped-query attention: a row of the cache holds the keys of all its heads, then their values."""

    num_heads: int
    num_kv_heads: int
    """Number of heads in the cache, one per group of query heads."""
    key_dim: int
    """Width of a query and of a key."""
    v_dim: int
    """Width of a value."""
    scale: float
    """The factor of attention scores."""
    block_tokens: int
    window: int | None = None
    """Positions that a token attends to, its own the last. None: all."""
    has_sinks: bool = False
    """Whether each head of queries has a sink: a score of one further position, whose value is 0."""
    is_short: bool = False
    """Whether the cache has 8 bits per number; see `ShortRows`."""

    @property
    def row_width(self) -> int:
        """Numbers per token in a layer's cache."""
        return self.num_kv_heads * (self.key_dim + self.v_dim)

    @property
    def values_at(self) -> int:
        """Offset of the values in a row; its keys begin at 0."""
        return self.num_kv_heads * self.key_dim

    @property
    def short_rows(self) -> ShortRows:
        """The layout of rows in 8 bits."""
        return ShortRows.of_heads(self.num_kv_heads, self.key_dim, self.v_dim)

    def __str__(self) -> str:
        window = "" if self.window is None else f" in windows of {self.window}"
        sinks = " with sinks" if self.has_sinks else ""
        return f"heads of {self.key_dim} and {self.v_dim} numbers{' in 8 bits' if self.is_short else ''}{window}{sinks}"


Sizes = LatentSizes | GroupedSizes
