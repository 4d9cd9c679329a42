"""Cost per layer of the transfer to the CPU's experts and back, inside a CUDA graph, with nothing to compute.

python benchmarks/hybrid/handoff.py [--layers 58] [--hidden 7168] [--batch 1 4 16] [--threads N]

Prints one JSON line per batch size. Without a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import numpy as np
import torch
from gguf import GGMLQuantizationType

from ballast._core import kernels
from ballast.host.gpu import why_unusable
from ballast.model.hybrid.backends.selection import backend_of
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.spec import ModelSpec
from devkit.bench_record import bench_record
from devkit.models.changed_spec import changed
from devkit.models.random_blocks import random_blocks
from devkit.models.specs.deepseek import R1_SPEC

EXPERTS, WIDTH = 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=58)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    for batch in options.batch:
        measure(batch, options)


@torch.inference_mode()
def measure(batch: int, options: argparse.Namespace) -> None:
    device = torch.device("cuda:0")
    pool = kernels.ThreadPool(options.threads)
    one = small_experts(pool, options.hidden)
    spec = spec_of(options.hidden)
    experts = HostExperts(spec, [one] * options.layers, pool, batch, backend_of(device).hand_off())
    x = torch.randn(batch, options.hidden, device=device)
    ids = torch.full((batch, EXPERTS), -1, dtype=torch.int32, device=device)
    weights = torch.ones(batch, EXPERTS, device=device)

    def step() -> torch.Tensor:
        out = x
        for index in range(options.layers):
            experts.submit(index, out, ids, weights)
            out = experts.result(index)
        return out

    experts.begin(batch)
    step()
    experts.finish(lambda: None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        experts.begin(batch)
        graph.replay()
        experts.finish(lambda: None)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(
        bench_record(
            "hybrid/handoff",
            f"{options.layers} layers of width {options.hidden}, B={batch}",
            threads=options.threads,
            us_per_layer=round(statistics.median(times) / options.layers * 1e6, 2),
            gpu=torch.cuda.get_device_name(device),
        ),
        flush=True,
    )


def small_experts(pool: kernels.ThreadPool, hidden: int) -> kernels.Experts:
    rng = np.random.default_rng(0)

    def matrix(rows: int, cols: int) -> kernels.Matrix:
        kind = GGMLQuantizationType.Q8_0
        return kernels.Matrix(random_blocks(rng, kind, EXPERTS * rows, cols), kind, EXPERTS * rows, cols)

    stacked = kernels.Experts(matrix(WIDTH, hidden), matrix(WIDTH, hidden), matrix(hidden, WIDTH), EXPERTS)
    return stacked.packed(pool, kernels.usable_isas()[0], activation_bytes=1)


def spec_of(hidden: int) -> ModelSpec:
    return changed(
        R1_SPEC, hidden=hidden, num_experts=EXPERTS, num_experts_used=EXPERTS, num_groups=1, num_groups_used=1
    )


if __name__ == "__main__":
    main()
