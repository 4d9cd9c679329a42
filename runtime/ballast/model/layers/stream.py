"""Hyper-connections: a residual stream of several rows per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ballast.model.layers.tensor import Tensor, matrix, vector


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
