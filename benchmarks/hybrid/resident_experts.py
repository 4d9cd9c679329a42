"""Routed experts in GPU memory by the number of tokens: shapes of DeepSeek-R1 and V2-Lite, in many types.

python benchmarks/hybrid/resident_experts.py [--tokens 1 4 16 64 128] [--shapes r1 v2-lite r1-iq2 r1-mxfp4 …]

Each token chooses its experts at random. Prints one JSON line per case: microseconds per layer inside a CUDA graph,
from the router's choice to the sum over a token's experts; bytes of distinct experts per second; and the largest error
of a token's result relative to its length as a power of two, against float64. The first line is a copy within the
memory, in bytes read and written per second. Without a GPU, it prints a message instead.
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
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.panels.stack import PanelStack, scales_on
from devkit.bench_record import bench_record
from devkit.gpu_times import captured_us
from devkit.models.random_blocks import dequantized, random_blocks, random_scales, scaled

SHAPES = {
    "r1": (256, 8, 7168, 2048, T.Q4_K, T.Q6_K),
    "r1-iq4": (256, 8, 7168, 2048, T.IQ4_XS, T.Q5_K),
    "r1-q2": (256, 8, 7168, 2048, T.Q2_K, T.Q3_K),
    "r1-iq1": (256, 8, 7168, 2048, T.IQ1_S, T.IQ1_M),
    "r1-iq2": (256, 8, 7168, 2048, T.IQ2_XXS, T.IQ3_XXS),
    "r1-iq2-s": (256, 8, 7168, 2048, T.IQ2_XS, T.IQ2_S),
    "r1-iq3": (256, 8, 7168, 2048, T.IQ3_XXS, T.IQ3_S),
    "r1-mxfp4": (256, 8, 7168, 2048, T.MXFP4, T.MXFP4),
    "r1-nvfp4": (256, 8, 7168, 2048, T.NVFP4, T.NVFP4),
    "r1-tq1": (256, 8, 7168, 2048, T.TQ1_0, T.TQ1_0),
    "r1-tq2": (256, 8, 7168, 2048, T.TQ2_0, T.TQ2_0),
    "v2-lite": (64, 6, 2048, 1408, T.Q8_0, T.Q8_0),
}
"""(experts, experts per token, hidden, width, type of gate and up, type of down)"""
CHOICES = 4
"""Number of expert choices that alternate."""
COPIED_BYTES = 1 << 30
DEVICE = torch.device("cuda:0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 4, 16, 64, 128])
    parser.add_argument("--shapes", choices=tuple(SHAPES), nargs="*", default=list(SHAPES))
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    with torch.inference_mode():
        measure_copy()
        for name in options.shapes:
            measure_experts(name, options.tokens)
            torch.cuda.empty_cache()


def measure_copy() -> None:
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    micros = captured_us([partial(target.copy_, source)])
    report("a copy within the memory", us=round(micros, 1), gb_per_s=round(2 * COPIED_BYTES / micros / 1e3))


def measure_experts(name: str, token_counts: Sequence[int]) -> None:
    num_experts, num_used, hidden, width, kind, down_kind = SHAPES[name]
    shapes = ((kind, width, hidden), (kind, width, hidden), (down_kind, hidden, width))
    stacks, weights = zip(*(copies(index, num_experts, *shape) for index, shape in enumerate(shapes)), strict=True)
    experts = ExpertPanels(*stacks)
    expert_bytes = sum(stack.packed.numel() for stack in stacks) // num_experts
    for num_tokens in token_counts:
        calls, distinct = [], 0
        for _ in range(CHOICES):
            ids = torch.rand(num_tokens, num_experts, device=DEVICE).argsort(1)[:, :num_used].int().contiguous()
            x, scores = torch.randn(num_tokens, hidden, device=DEVICE), torch.rand(num_tokens, num_used, device=DEVICE)
            calls.append(partial(experts, x, ids, scores))
            distinct += ids.unique().numel()
        micros = captured_us(calls)
        error = error_of(experts(x, ids, scores), x, scores, weights)
        report(
            f"{name}, {kind.name} and {down_kind.name}, {num_tokens} tokens",
            us=round(micros, 1),
            weights_gb_per_s=round(distinct / CHOICES * expert_bytes / micros / 1e3),
            error_bits=round(math.log2(error), 1),
        )


def copies(seed: int, num_experts: int, kind: T, rows: int, cols: int) -> tuple[PanelStack, torch.Tensor]:
    """Returns one random matrix repeated for each expert, and its weights as float64."""
    rng = np.random.default_rng(seed)
    data, scales = random_blocks(rng, kind, rows, cols), random_scales(rng, kind, 1)
    matrix = kernels.Matrix(data, kind, rows, cols, scales)
    packed = kernels.pack(kernels.ThreadPool(8), matrix, kernels.usable_isas()[0], activation_bytes=1)
    panels = torch.from_numpy(packed.panels.copy()).to(DEVICE).reshape(1, -1).repeat(num_experts, 1)
    [weight] = scaled(dequantized(data, kind).reshape(1, rows, cols), scales)
    on_device = scales_on(DEVICE, scales, kind, num_experts)
    return PanelStack(panels, kind, num_experts, rows, cols, on_device), torch.from_numpy(weight).to(DEVICE)


def error_of(found: torch.Tensor, x: torch.Tensor, scores: torch.Tensor, weights: Sequence[torch.Tensor]) -> float:
    """All experts are equal, so a token's result is one expert's result times the sum of its scores."""
    gate, up, down = weights
    gated = x.double() @ gate.T
    exact = (torch.nn.functional.silu(gated) * (x.double() @ up.T)) @ down.T * scores.double().sum(1, keepdim=True)
    return float(((found.double() - exact).norm(dim=1) / exact.norm(dim=1)).max())


def report(case: str, **figures: float) -> None:
    print(bench_record("hybrid/resident_experts", case, **figures, gpu=torch.cuda.get_device_name()), flush=True)


if __name__ == "__main__":
    main()
