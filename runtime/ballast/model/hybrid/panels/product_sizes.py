"""Limits of the products of packed matrices on a GPU, which plans of memory need too. Pure."""

from __future__ import annotations

MIN_CUBLAS_TOKENS = 160
"""Minimum tokens for which a quantised matrix is decoded to memory and multiplied by cuBLAS."""
SCRATCH_BYTES = 256 << 20
"""Maximum memory for the rows of a matrix that are decoded at a time."""
