"""The sizes of the built-in model."""

from __future__ import annotations

from ballast.tiny.shape import BALLAST_TINY

SHAPE = BALLAST_TINY

VOCABULARY = 4480
"""Tokens of the BPE: the bytes, what was learnt, and the first three special tokens."""

LONGEST = 2048
"""Tokens of the longest conversation that is trained on."""

QUANT = "q4_k_m"
"""Types of the shipped file, as `ballast.tiny.quant_mix` names them; training ends with weights rounded so."""
