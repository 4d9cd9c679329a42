"""Linear layers and routed experts over packed weights on a GPU, in DeepSeek-R1's shapes.

python benchmarks/hybrid/panel_linear.py [--tokens 1 4 16 64 256 1024 4096]

Prints one JSON line per case: microseconds per call inside a CUDA graph over copies of the weights that together do not
fit the caches; packed weight bytes and arithmetic operations per second; and the largest error over Σ|wᵢ xᵢ| as a power
of two, for the first rows against float64. Without a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast.host.gpu import why_unusable
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels, PanelStack
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS
from devkit.bench_record import bench_record
from devkit.gpu_times import captured_us
from devkit.models.random_blocks import dequantized, random_blocks

LINEARS = {
    "query down": (T.Q4_K, 1536, 7168),
    "query up": (T.Q4_K, 24576, 1536),
    "attention output": (T.Q4_K, 7168, 16384),
    "dense gate": (T.Q4_K, 18432, 7168),
    "dense down": (T.Q6_K, 7168, 18432),
    "output head": (T.Q6_K, 129280, 7168),
}
EXPERTS, HIDDEN, WIDTH = 8, 7168, 2048
COLD_BYTES = 150 << 20
ROWS = 256
"""Number of distinct rows; a matrix repeats them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1024, 4096])
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    with torch.inference_mode():
        for name, shape in LINEARS.items():
            measure_linear(name, *shape, options.tokens)
        measure_experts()


def measure_linear(name: str, kind: T, rows: int, cols: int, token_counts: Sequence[int]) -> None:
    device = torch.device("cuda:0")
    matrix, weight = packed(kind, rows, cols)
    linears: list[PanelLinear] = []
    while sum(linear.num_bytes for linear in linears) < COLD_BYTES:
        linears.append(PanelLinear(matrix, rows, cols, is_transposed=False, device=device))
    for tokens in token_counts:
        x = torch.randn(tokens, cols, device=device)
        exact, bound = x.double() @ weight.T, x.double().abs() @ weight.abs().T
        for by_int_gemm in (False, True) if tokens < MIN_CUBLAS_TOKENS else (False,):
            micros = captured_us([partial(linear.multiply, x, by_int_gemm=by_int_gemm) for linear in linears])
            found = linears[0].multiply(x, by_int_gemm=by_int_gemm)[:, :ROWS].double()
            report(
                f"{name}, {kind.name} {rows} x {cols}, {tokens} tokens" + ", by exact codes" * by_int_gemm,
                micros,
                linears[0].num_bytes,
                2 * tokens * rows * cols,
                error_bits=round(math.log2(float(((found - exact).abs() / bound).max())), 1),
            )


def measure_experts() -> None:
    """Pairs of 8 experts in device memory: a few pairs, and as many as a long prompt has. For as many experts in
    registered host memory: the pairs of one token."""
    device = torch.device("cuda:0")
    shapes = ((T.Q4_K, WIDTH, HIDDEN), (T.Q4_K, WIDTH, HIDDEN), (T.Q6_K, HIDDEN, WIDTH))
    panels = [torch.from_numpy(packed(kind, EXPERTS * rows, cols)[0].panels.copy()) for kind, rows, cols in shapes]
    num_bytes = sum(part.numel() for part in panels)

    def experts_in(parts: Sequence[torch.Tensor]) -> ExpertPanels:
        stacks = [PanelStack(part, *shape[:1], EXPERTS, *shape[1:]) for part, shape in zip(parts, shapes, strict=True)]
        return ExpertPanels(*stacks)

    on_device = experts_in([part.to(device) for part in panels])
    for tokens, used in ((1, 8), (4, 8), (16, 8), (256, 1), (1024, 1), (4096, 1)):
        ids = torch.stack([(torch.arange(used) + token) % EXPERTS for token in range(tokens)]).int().to(device)
        x, weights = torch.randn(tokens, HIDDEN, device=device), torch.rand(tokens, used, device=device)
        micros = captured_us([partial(on_device, x, ids, weights)])
        flops = 6 * tokens * used * HIDDEN * WIDTH
        report(f"{EXPERTS} experts on the device, {tokens} tokens, {used} each", micros, num_bytes, flops)
    on_host = experts_in([part.pin_memory() for part in panels])
    ids = torch.arange(EXPERTS, dtype=torch.int32, device=device)[None]
    x, weights = torch.randn(1, HIDDEN, device=device), torch.rand(1, EXPERTS, device=device)
    micros = captured_us([partial(on_host, x, ids, weights)])
    report(f"{EXPERTS} experts in host memory, a token", micros, num_bytes, 6 * EXPERTS * HIDDEN * WIDTH)


def packed(kind: T, rows: int, cols: int) -> tuple[kernels.Matrix, torch.Tensor]:
    """Returns a matrix that repeats ROWS random rows, and the rows on the device as float64."""
    data = random_blocks(np.random.default_rng(0), kind, ROWS, cols)
    pool = kernels.ThreadPool(8)
    whole = kernels.Matrix(np.tile(data, (rows // ROWS, 1)), kind, rows, cols)
    weight = torch.from_numpy(dequantized(data, kind).reshape(ROWS, cols).astype(np.float64)).cuda()
    return kernels.pack(pool, whole, kernels.usable_isas()[0], activation_bytes=1), weight


def report(case: str, micros: float, num_bytes: int, flops: int, **figures: float) -> None:
    line = bench_record(
        "hybrid/panel_linear",
        case,
        us=round(micros, 1),
        weights_gb_per_s=round(num_bytes / micros / 1e3, 1),
        tflop_per_s=round(flops / micros / 1e6, 2),
        **figures,
        gpu=torch.cuda.get_device_name(),
    )
    print(line, flush=True)


if __name__ == "__main__":
    main()
