"""Parts of config.json that several families have."""

from __future__ import annotations

from typing import Any

from ballast.families.registry import ARCHITECTURES
from ballast.tiny.metadata import has_window
from ballast.tiny.shape import TinyHeads, TinyShape


def layer_types(shape: TinyShape, heads: TinyHeads) -> list[str]:
    """As config.json lists them."""
    return ["sliding_attention" if each else "full_attention" for each in has_window(shape, heads)]


def mlp_types(shape: TinyShape) -> list[str]:
    return ["dense" if layer < shape.num_dense_layers else "sparse" for layer in range(shape.num_layers)]


def rope_scaling(shape: TinyShape) -> dict[str, Any]:
    assert shape.yarn is not None
    own: dict[str, Any] = {"mscale": shape.yarn.mscale, "mscale_all_dim": shape.yarn.mscale_all_dim}
    if shape.yarn.is_plain:
        own = {"truncate": ARCHITECTURES[shape.architecture].rounds_yarn}
    if shape.yarn.attention_factor is not None:
        own["attention_factor"] = shape.yarn.attention_factor
    return own | {
        "beta_fast": shape.yarn.beta_fast,
        "beta_slow": shape.yarn.beta_slow,
        "factor": shape.yarn.factor,
        "original_max_position_embeddings": shape.yarn.original_context,
        "type": "yarn",
    }
