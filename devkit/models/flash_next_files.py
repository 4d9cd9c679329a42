"""Tiny files of Qwen3.8-Flash-Next whose shapes differ from the preset's."""

from __future__ import annotations

from typing import Any

from ballast.model.layers.stream import GatedStreamSpec
from ballast.tiny.shape import TinyDeltaNet, TinyIndex, TinyNgram


def other_flash_next(pool: int) -> dict[str, dict[str, Any]]:
    """Fields of the preset that each file replaces, by the name of a case. One file selects pools of `pool` tokens."""
    return {
        "merged tensors, three rows, n-grams of two": {
            "delta_net": TinyDeltaNet(product_layout="merged", beta_layout="merged"),
            "stream": GatedStreamSpec(num_rows=3, rank=64, is_merged=True),
            "ngram": TinyNgram(layer=0, most_tokens=2, heads_per_length=8, conv_taps=3),
        },
        f"n-grams of four, pools of {pool}": {
            "hidden": 768,
            "index": TinyIndex(pool=pool),
            "ngram": TinyNgram(layer=4, most_tokens=4, heads_per_length=4),
        },
        "no n-grams": {"ngram": None},
    }
