"""Write the built-in model's weights for activations.py, moved off the grid to which its file rounded them.

Neighbouring matrices are multiplied by factors that cancel, so the model computes the same function: the rows of one
matrix and the columns of the next, or a norm and the matrix after it. The embedding is unchanged.

python benchmarks/engine/off_grid.py WEIGHTS.npz
"""

from __future__ import annotations

import sys
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ballast.tiny import BALLAST_TINY, BUILT_IN
from ballast.weights.gguf import open_gguf

SPREAD = 0.2
"""Standard deviation of the factors' logarithms."""


def main(out: str) -> None:
    model = open_gguf(BUILT_IN.gguf)
    weights = {
        name: gguf.quants.dequantize(model.data(name), info.ggml_type).reshape(info.shape).astype(np.float64)
        for name, info in model.tensors.items()
    }
    move(weights, np.random.default_rng(5))
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in weights.items()}
    np.savez(out, **arrays)


def move(weights: dict[str, NDArray[np.float64]], rng: np.random.Generator) -> None:
    """Changes `weights` in place."""
    shape = BALLAST_TINY

    def factors(*dims: int) -> NDArray[np.float64]:
        return np.exp(rng.normal(0, SPREAD, dims))

    def after_norm(norm: str, *matrices: str) -> None:
        by = factors(weights[f"{norm}.weight"].size)
        weights[f"{norm}.weight"] = weights[f"{norm}.weight"] / by
        for name in matrices:
            weights[f"{name}.weight"] = weights[f"{name}.weight"] * by

    for layer in range(shape.num_layers):
        block = f"blk.{layer}."
        after_norm(f"{block}attn_norm", f"{block}attn_q_a", f"{block}attn_kv_a_mqa")
        after_norm(f"{block}attn_q_a_norm", f"{block}attn_q_b")
        latent = factors(shape.kv_lora_rank)
        weights[f"{block}attn_kv_a_norm.weight"] = weights[f"{block}attn_kv_a_norm.weight"] / latent
        keys, values = weights[f"{block}attn_k_b.weight"], weights[f"{block}attn_v_b.weight"]  # [heads, rows, columns]
        by_key, by_value = factors(shape.num_heads, shape.nope_dim), factors(shape.num_heads, shape.v_dim)
        weights[f"{block}attn_k_b.weight"] = keys * latent[:, None] / by_key[:, None, :]
        weights[f"{block}attn_v_b.weight"] = values * latent * by_value[:, :, None]
        queries = (
            weights[f"{block}attn_q_b.weight"].reshape(shape.num_heads, shape.nope_dim + shape.rope_dim, -1).copy()
        )
        queries[:, : shape.nope_dim] *= by_key[:, :, None]
        weights[f"{block}attn_q_b.weight"] = queries.reshape(weights[f"{block}attn_q_b.weight"].shape)
        weights[f"{block}attn_output.weight"] = weights[f"{block}attn_output.weight"] / by_value.reshape(-1)
        is_dense = layer < shape.num_dense_layers
        kinds = ("",) if is_dense else ("_exps", "_shexp")
        router = () if is_dense else (f"{block}ffn_gate_inp",)
        after_norm(
            f"{block}ffn_norm", *router, *(f"{block}ffn_{part}{kind}" for kind in kinds for part in ("gate", "up"))
        )
        for kind in kinds:
            up, down = f"{block}ffn_up{kind}.weight", f"{block}ffn_down{kind}.weight"
            by = factors(*weights[up].shape[:-1])
            weights[up] = weights[up] * by[..., None]
            weights[down] = weights[down] / by[..., None, :]
    after_norm("output_norm", "output")


if __name__ == "__main__":
    main(sys.argv[1])
