"""What the kernel benchmarks share: random packed weights, timing, and one JSON line a case."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from ballast.testing.blocks import random_blocks


def random_matrix(
    pool: kernels.ThreadPool, kind: GGMLQuantizationType, rows: int, cols: int, isa: str, num_heads: int = 1
) -> kernels.Matrix:
    """Random weights [rows, cols], packed for `isa` with `num_heads` heads of equal size."""
    rng = np.random.default_rng(0)
    distinct = min(rows, 1 << 12)
    data = np.resize(
        random_blocks(rng, kind, distinct, cols), (rows, cols // GGML_QUANT_SIZES[kind][0] * GGML_QUANT_SIZES[kind][1])
    )
    matrix = kernels.Matrix(data, kind, rows, cols)
    head_rows = rows // num_heads
    if num_heads == 1:
        return kernels.pack(pool, matrix, isa)
    return kernels.pack(pool, matrix, isa, num_heads=num_heads, head_stride=head_rows, num_rows=head_rows)


def seconds_per_call(call: Callable[[], object], budget_s: float = 0.6) -> float:
    """Median time of a call, of as many as fit the budget, three at least; one call before does not count."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def emit(record: dict[str, object]) -> None:
    """One case on standard output."""
    print(json.dumps(_where() | record), flush=True)


def _where() -> dict[str, object]:
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
    )
    return {"commit": commit.stdout.strip(), "cpu": _cpu()}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def usable(isas: list[str] | None) -> Iterator[str]:
    """The chosen instruction sets, or all fast ones that run here."""
    yield from isas if isas is not None else kernels.usable_isas()[:-1]
