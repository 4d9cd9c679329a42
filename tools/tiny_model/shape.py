"""The sizes of the built-in model, and of a larger one for comparison."""

from __future__ import annotations

from dataclasses import replace

from ballast.tiny.presets import BALLAST_TINY

SHAPE = BALLAST_TINY

LARGER = replace(
    SHAPE,
    name="ballast-larger",
    num_layers=10,
    hidden=768,
    ffn_dim=2048,
    num_heads=8,
    q_lora_rank=512,
    expert_dim=512,
)
"""130 million parameters, for measurements that need larger matrices (`benchmarks/engine/activations.py`)."""

SHAPES = {"built-in": SHAPE, "larger": LARGER}

VOCABULARY = 4480
"""Tokens of the BPE: the bytes, the learnt tokens, and the first three special tokens."""

LONGEST = 2048
"""Tokens of the longest conversation in training."""

QUANT = "q4_k_m"
"""Types of the shipped file, by their names in `ballast.tiny.quant_mix`. Training ends with weights rounded to them."""
