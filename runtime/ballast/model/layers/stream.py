"""Hyper-connections: a residual stream of several rows per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ballast.model.layers.tensor import RowSlice, Tensor, matrix, norm, vector


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Manifold-constrained hyper-connections (arXiv 2512.24880). Each block reads a weighted sum of a token's rows and
    adds to each of them; a matrix mixes the rows meanwhile. All weights depend on the rows."""

    num_rows: int
    """Of a token, each as wide as the model."""
    rounds: int
    """Rounds in which the columns and rows of the mixing matrix are divided by their sums (Sinkhorn's algorithm)."""
    eps: float
    """Is added to these sums, and to some weights."""
    weighs_end: bool = False
    """Whether the rows are added up by weights after the last layer, else their mean is taken."""

    @property
    def num_weights(self) -> int:
        """Of a token and block: to read each row, to add to each row, and to mix them."""
        return self.num_rows * (2 + self.num_rows)

    def tensors(self, hidden: int, block: Literal["attention", "ffn"]) -> tuple[Tensor, ...]:
        """Those of one of a layer's two blocks."""
        name = "attn" if block == "attention" else "ffn"
        module, classes = f"{name}_hc", ("{family}HyperConnection",)
        shape = (self.num_weights, self.num_rows * hidden)
        return (
            matrix(f"{block}_stream_products", f"hc_{name}_fn", shape, module, classes=classes, is_flat=True),
            vector(f"{block}_stream_base", f"hc_{name}_base", self.num_weights, module, classes=classes),
            vector(f"{block}_stream_scales", f"hc_{name}_scale", 3, module, classes=classes),
        )

    def end_tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Those of the weights after the last layer, with the names of the whole model."""
        if not self.weighs_end:
            return ()
        module, classes, shape = "model.hc_head", ("{family}HyperHead",), (self.num_rows, self.num_rows * hidden)
        return (
            matrix("stream_end_products", "output_hc_fn", shape, module, classes=classes, is_flat=True),
            vector("stream_end_base", "output_hc_base", self.num_rows, module, classes=classes),
            vector("stream_end_scales", "output_hc_scale", 1, module, classes=classes),
        )


@dataclass(frozen=True, slots=True)
class GatedStreamSpec:
    """The residual stream of Qwen3.8-Flash-Next. Each block reads the mean of a token's normed rows, each number with
    a gate, and adds to each row with a weight. Gates and weights depend on the rows, and no block has another norm."""

    num_rows: int
    """Of a token, each as wide as the model."""
    rank: int
    """Of the matrix that gives the gates."""
    is_merged: bool = False
    """Whether one tensor has the first factor of the gates and the weights."""

    def tensors(self, hidden: int, block: Literal["attention", "ffn"]) -> tuple[Tensor, ...]:
        """Those of one of a layer's two blocks."""
        name, module = ("attn", "attn") if block == "attention" else ("ffn", "mlp")
        return self._gates(hidden, f"{block}_stream", f"hc_{name}", f"{module}_hyper_connection", injects=True)

    def output_tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Those by which the output reads the stream."""
        return self._gates(hidden, "output_stream", "output_hc", "model.hyper_connection_mixer", injects=False)

    def _gates(self, hidden: int, role: str, name: str, module: str, *, injects: bool) -> tuple[Tensor, ...]:
        width = self.num_rows * hidden
        first = f"{module}.input_mix_weight_down"
        slices = (RowSlice(f"{role}_down", self.rank), RowSlice(f"{role}_inject", self.num_rows))
        both = (self.rank + self.num_rows, width)
        merged = matrix(f"{role}_down_inject", f"{name}_down_inject", both, first, slices=slices)
        down = matrix(f"{role}_down", f"{name}_down", (self.rank, width), first)
        inject = matrix(f"{role}_inject", f"{name}_inject", (self.num_rows, width), f"{module}.block_inject_weight")
        apart = (down, inject) if injects else (down,)
        return (
            norm(f"{role}_norm", f"{name}_norm", width, f"{module}.hc_norm"),
            *((merged,) if injects and self.is_merged else apart),
            matrix(f"{role}_up", f"{name}_up", (width, self.rank), f"{module}.input_mix_weight_up"),
        )
