"""An embedding of n-grams: each is hashed to rows of a large table."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.layers.plane import State
from ballast.model.layers.tensor import Tensor, matrix, norm

TABLE = "ngram_table"
"""The role of the table."""


@dataclass(frozen=True, slots=True)
class NgramSpec:
    """The per-layer embedding (PLE) of Qwen3.8-Flash-Next, which a layer adds to each row of its stream before its
    mixer. N-grams of 2, 3, … tokens end at each token; each length has the same number of heads, and each head a row of
    its own range of the table."""

    table_rows: int
    row_width: int
    multipliers: tuple[int, ...]
    """One multiplier per token of the longest n-gram, from its last token backwards."""
    head_offsets: tuple[int, ...]
    """The first row of each head, first those of n-grams of 2 tokens."""
    head_sizes: tuple[int, ...]
    """The number of rows of each head."""
    end_id: int
    """The token that ends a text: an n-gram has it in place of all tokens before the last end of a text."""
    conv_taps: int
    """Tokens that the convolution sees, its own the last, at distances of the longest n-gram."""

    @property
    def width(self) -> int:
        """Numbers of a token that the heads give together."""
        return len(self.head_sizes) * self.row_width

    @property
    def kept_inputs(self) -> int:
        """Tokens whose inputs of the convolution are kept."""
        return (self.conv_taps - 1) * len(self.multipliers)

    def states(self, stream_width: int) -> tuple[State, ...]:
        """The state of a sequence, without its last tokens, which are part of each step's input."""
        return (State("n-gram convolution", self.kept_inputs * stream_width),)

    def tensors(self, hidden: int, num_rows: int) -> tuple[Tensor, ...]:
        """Those of the layer. `num_rows`: of the stream."""
        width, module = num_rows * hidden, "ple"
        return (
            matrix("ngram_key", "ple_key", (width, self.width), f"{module}.key_proj"),
            matrix("ngram_value", "ple_value", (hidden, self.width), f"{module}.value_proj"),
            norm("ngram_key_norm", "ple_norm_key", width, f"{module}.norm_key"),
            norm("ngram_query_norm", "ple_norm_query", width, f"{module}.norm_query"),
            norm("ngram_conv_norm", "ple_norm_conv", width, f"{module}.norm_conv"),
            matrix(
                "ngram_conv",
                "ple_conv1d",
                (width, self.conv_taps),
                f"{module}.conv1d",
                classes=("Conv1d",),
                is_exact=True,
                is_flat=True,
            ),
        )
