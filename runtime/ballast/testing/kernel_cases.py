"""Packed weights and timing for the benchmarks of the CPU kernels."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from ballast.testing.blocks import random_blocks


def packed_matrix(
    pool: kernels.ThreadPool,
    kind: GGMLQuantizationType,
    rows: int,
    cols: int,
    isa: str,
    activation_bytes: int,
    num_heads: int = 1,
) -> kernels.Matrix:
    """Random weights [rows, cols] packed for `isa`, with `num_heads` heads of equal height."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    distinct = random_blocks(np.random.default_rng(0), kind, min(rows, 1 << 12), cols)
    data = np.resize(distinct, (rows, cols // block_weights * block_bytes))
    height = rows // num_heads
    return kernels.pack(
        pool,
        kernels.Matrix(data, kind, rows, cols),
        isa,
        num_heads=num_heads,
        head_stride=height,
        num_rows=height,
        activation_bytes=activation_bytes,
    )


def seconds_per_call(call: Callable[[], object], budget_s: float = 0.5) -> float:
    """Median time of a call, of as many as fit the budget, three at least; one before them does not count."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))
