"""The sizes of recurrent layers, and those that kernels on a GPU support."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import RecurrentMixer

CHUNK_TOKENS = 64
"""Maximum tokens of a chunk. Chunks end at multiples of it, counted from the beginning of a request, so that equal
prompts are divided equally in any steps that end there."""
BLOCK_TOKENS = 16
"""Tokens of a block of a chunk, if each row of a state has a decay. Divides `CHUNK_TOKENS`."""
COLUMNS = 32
"""Columns of a head's state that a program computes."""
KEY_DIMS = (16, 32, 64, 128)
"""Widths of keys: powers of two, of which a program keeps all rows of its columns."""


@dataclass(frozen=True, slots=True)
class RecurrentSizes:
    """Heads with a state [key_dim, v_dim] each, and a convolution over all queries, keys and values."""

    num_heads: int
    """Of values."""
    num_key_heads: int
    """Of queries and keys. Divides `num_heads`."""
    key_dim: int
    v_dim: int
    conv_taps: int
    heads_alternate: bool
    """Whether head h has the key head h % num_key_heads, else neighbouring heads share one."""
    decays_rows: bool
    """Whether each row of a state has a decay, else all have one."""
    has_sigmoid_gate: bool
    """Whether the output is multiplied by the sigmoid of its gate, else by silu."""
    lower_bound: float = 0.0
    """Below 0: the logarithm of a row's decay is this times a sigmoid; see `KimiDeltaSpec`."""

    @property
    def key_width(self) -> int:
        """Numbers of a token's keys."""
        return self.num_key_heads * self.key_dim

    @property
    def channels(self) -> int:
        """Numbers of a token that pass the convolution."""
        return 2 * self.key_width + self.num_heads * self.v_dim


def sizes_of(mixer: RecurrentMixer) -> RecurrentSizes:
    """The sizes of layers with this mixer."""
    if isinstance(mixer, KimiDeltaSpec):
        heads, width = mixer.num_heads, mixer.head_dim
        return RecurrentSizes(
            *(heads, heads, width, width, mixer.conv_taps),
            heads_alternate=False,
            decays_rows=True,
            has_sigmoid_gate=True,
            lower_bound=mixer.lower_bound,
        )
    return RecurrentSizes(
        mixer.num_heads,
        mixer.num_key_heads,
        mixer.key_dim,
        mixer.v_dim,
        mixer.conv_taps,
        mixer.heads_alternate,
        decays_rows=False,
        has_sigmoid_gate=mixer.gate == "sigmoid",
    )


def why_not_supported(mixer: RecurrentMixer) -> str | None:
    """Why a GPU cannot compute layers with this mixer; None if it can."""
    sizes = sizes_of(mixer)
    if sizes.key_dim in KEY_DIMS and sizes.v_dim % COLUMNS == 0:
        return None
    widths = ", ".join(map(str, KEY_DIMS))
    return (
        f"its recurrent layers have keys of {sizes.key_dim} and values of {sizes.v_dim} numbers; kernels on a GPU "
        f"support keys of {widths} and values of a multiple of {COLUMNS}"
    )
