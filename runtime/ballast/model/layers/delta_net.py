"""Gated DeltaNet: linear attention whose cache is a state of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ballast.model.layers.plane import Plane, State
from ballast.model.layers.tensor import RowSlice, Tensor, bias, matrix, norm

MatrixLayout = Literal["split", "merged", "grouped"]
"""How a file stores two matrices with the same input: split into two tensors; merged into one tensor, one below the
other; or in one tensor grouped by key head, each with its rows of both."""


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Gated DeltaNet (arXiv 2412.06464). A token decays the state of each head and corrects what it gives for the
    token's key. Queries, keys and values pass a short convolution."""

    num_heads: int
    """Of values."""
    num_key_heads: int
    """Of queries and keys. Divides `num_heads`."""
    key_dim: int
    """Width of a head's query and key."""
    v_dim: int
    conv_taps: int
    """Tokens that the convolution sees, its own the last."""
    heads_alternate: bool = False
    """Whether head h has the key head h % num_key_heads, else neighbouring heads share one."""
    gate: Literal["silu", "sigmoid"] = "silu"
    """The function of the gates that multiply the output."""
    product_layout: MatrixLayout = "split"
    """How the matrices of queries, keys and values and of output gates are stored; in older files they are grouped."""
    beta_layout: MatrixLayout = "grouped"
    """How the matrices of betas and alphas are stored."""

    @property
    def beta_group(self) -> int:
        """Heads whose betas and then alphas follow each other in one product; 0: betas and alphas are apart."""
        return self.num_heads // self.num_key_heads if self.beta_layout == "grouped" else 0

    @property
    def key_width(self) -> int:
        """Numbers of a token's keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers of a token's values."""
        return self.num_heads * self.v_dim

    @property
    def channels(self) -> int:
        """Numbers of a token that pass the convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def planes(self) -> tuple[Plane, ...]:
        """It keeps nothing of single tokens."""
        return ()

    @property
    def states(self) -> tuple[State, ...]:
        """What the layer keeps of a sequence."""
        return (
            State("recurrent", self.num_heads * self.key_dim * self.v_dim),
            State("convolution", (self.conv_taps - 1) * self.channels),
        )

    @property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        return {"linear_attn": ("{family}GatedDeltaNet",)}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        heads, module, own = self.num_heads, "linear_attn", self.modules["linear_attn"]
        return (
            *self._products(hidden),
            *self._betas(hidden),
            matrix(
                "conv", "ssm_conv1d", (self.channels, self.conv_taps), f"{module}.conv1d", is_exact=True, is_flat=True
            ),
            Tensor("rate", "ssm_a", (heads,), "attention", module, own, limits="decay"),
            bias("rate_shift", "ssm_dt", heads, module, classes=own),
            norm("head_norm", "ssm_norm", self.v_dim, f"{module}.norm", classes=("{family}RMSNormGated",)),
            matrix("output", "ssm_out", (hidden, self.value_width), f"{module}.out_proj"),
        )

    def _betas(self, hidden: int) -> tuple[Tensor, ...]:
        """Of betas, which weigh corrections, and of alphas, which give decays."""
        heads, module = self.num_heads, "linear_attn"
        if self.beta_layout == "merged":
            slices = (RowSlice("beta", heads), RowSlice("alpha", heads))
            return (
                matrix("betas_alphas", "ssm_beta_alpha", (2 * heads, hidden), f"{module}.in_proj_ba", slices=slices),
            )
        if self.beta_layout == "grouped":
            return (matrix("beta_alpha", "ssm_ba", (2 * heads, hidden), f"{module}.in_proj_ba"),)
        return (
            matrix("beta", "ssm_beta", (heads, hidden), f"{module}.in_proj_b"),
            matrix("alpha", "ssm_alpha", (heads, hidden), f"{module}.in_proj_a"),
        )

    def _products(self, hidden: int) -> tuple[Tensor, ...]:
        module = "linear_attn.in_proj_qkvz"
        if self.product_layout == "merged":
            slices = (RowSlice("mixed", self.channels), RowSlice("output_gate", self.value_width))
            num_rows = self.channels + self.value_width
            return (matrix("products", "attn_qkv_gate", (num_rows, hidden), module, slices=slices),)
        if self.product_layout == "grouped":
            return (matrix("grouped", "ssm_in", (self.channels + self.value_width, hidden), module),)
        return (
            matrix("mixed", "attn_qkv", (self.channels, hidden), module),
            matrix("output_gate", "attn_gate", (self.value_width, hidden), module),
        )
