"""Weights and timing for the benchmarks of the CPU kernels."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from devkit.models.random_blocks import random_blocks, random_scales


def matrix_of(kind: GGMLQuantizationType, rows: int, cols: int, num_experts: int = 1) -> kernels.Matrix:
    """Random weights [rows, cols], with the scales of `num_experts` matrices where the type has such."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    distinct = random_blocks(np.random.default_rng(0), kind, min(rows, 1 << 12), cols)
    data = np.resize(distinct, (rows, cols // block_weights * block_bytes))
    return kernels.Matrix(data, kind, rows, cols, random_scales(np.random.default_rng(1), kind, num_experts))


def seconds_per_call(call: Callable[[], object], budget_s: float = 0.5) -> float:
    """Median time of a call, after one warm-up call. As many calls as fit the budget, at least three."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))
