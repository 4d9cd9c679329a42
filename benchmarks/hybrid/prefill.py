"""Prefill of a hybrid model with experts streamed to the GPU and with experts computed by the CPU. The model is loaded
once.

python benchmarks/hybrid/prefill.py MODEL.gguf [--tokens 512 1024 4096] [--threads N] [--repeats 3] [--by streamed cpu]
                                    [--profile]

Prints one JSON line per case: a step of N random tokens, its median and spread, and its speed as a share of the speed
at which the experts could cross PCIe. --profile shows the GPU time of a streamed step by kernel. Without a GPU, it
prints a message instead.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from ballast.engine.startup.build import DeviceSettings, EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import why_unusable
from ballast.model.batch import Batch
from ballast.model.hybrid.model import HybridModel
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.oracles.divergence import log_probabilities, mean_divergence

BLOCK_TOKENS = 64
COPY_BYTES = 1 << 30
ROADS = {"streamed": "streamed", "cpu": "by the CPU"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 4096])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--by", choices=tuple(ROADS), nargs="+", default=["streamed", "cpu"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    for line in measure(options):
        print(line, flush=True)


def measure(options: argparse.Namespace) -> Iterator[str]:
    gguf_model = open_gguf(options.model)
    spec = read_spec(gguf_model, None)
    most = max(options.tokens)
    settings = EngineSettings(
        cache_lens=most,
        max_batch_size=1,
        max_new_tokens=1,
        chunk_size=most,
        prefill_chunk_size=most,
        max_queue=1,
        block_tokens=BLOCK_TOKENS,
        cpu_threads=options.threads,
        devices=(DeviceSettings("cuda:0", range(spec.num_layers)),),
        stream_from_tokens=1,
    )
    begin = time.perf_counter()
    model = load_runner(gguf_model, spec, spec.vocab_size, settings)
    load_s = time.perf_counter() - begin
    assert isinstance(model, HybridModel)
    assert model.streamed is not None
    assert model.pinned_bytes, "the experts' memory could not be pinned"
    pcie = copy_speed()
    rng = np.random.default_rng(0)
    for num_tokens in options.tokens:
        ids = rng.integers(0, spec.vocab_size, num_tokens).astype(np.int32)
        logits = {}
        for by in options.by:
            model.streamed.from_tokens = 1 if by == "streamed" else most + 1
            times = []
            for _ in range(options.repeats + 1):  # the first run compiles and warms up
                begin = time.perf_counter()
                logits[by] = model.forward(batch_of(ids), lambda: None)
                times.append(time.perf_counter() - begin)
            step_s = statistics.median(times[1:])
            pcie_s = model.streamed.pass_bytes / pcie
            yield bench_record(
                "hybrid/prefill",
                f"{options.model.name}: {num_tokens} tokens, experts {ROADS[by]}",
                threads=options.threads,
                step_s=round(step_s, 4),
                step_s_least=round(min(times[1:]), 4),
                step_s_most=round(max(times[1:]), 4),
                tokens_per_s=round(num_tokens / step_s, 1),
                expert_gb=round(model.streamed.pass_bytes / 1e9, 2),
                pcie_gb_per_s=round(pcie / 1e9, 1),
                share_of_pcie_limit=round(pcie_s / step_s, 3),
                load_s=round(load_s, 1),
                gpu_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2),
                gpu=torch.cuda.get_device_name(),
            )
        if len(logits) == 2:
            yield bench_record("hybrid/prefill", f"{num_tokens} tokens, both roads", **agreement(*logits.values()))
        if options.profile:
            model.streamed.from_tokens = 1
            print(table(model, ids), file=sys.stderr)


def batch_of(ids: np.ndarray) -> Batch:
    """Runs one prompt as one chunk and samples its last token."""
    positions = np.arange(len(ids), dtype=np.int32)
    blocks = np.arange(1, -(-len(ids) // BLOCK_TOKENS) + 1, dtype=np.int32)
    return Batch(
        token_ids=ids,
        positions=positions,
        slots=(blocks[0] * BLOCK_TOKENS + positions).astype(np.int32),
        query_indptr=np.array([0, len(ids)], np.int32),
        kv_indptr=np.array([0, len(blocks)], np.int32),
        kv_indices=blocks,
        sampled=np.array([len(ids) - 1]),
    )


def copy_speed() -> float:
    """Bytes per second from pinned host memory to the GPU, the best of several measurements."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda:0")
    best = 0.0
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, COPY_BYTES / (time.perf_counter() - begin))
    return best


def agreement(streamed: np.ndarray, by_cpu: np.ndarray) -> dict[str, float]:
    """Error of the last token's logits. The CPU's experts round activations to two bytes."""
    return {
        "kl_divergence": mean_divergence(log_probabilities(by_cpu), log_probabilities(streamed)),
        "largest_difference": float(np.abs(streamed - by_cpu).max() / np.abs(by_cpu).max()),
    }


def table(model: HybridModel, ids: np.ndarray) -> str:
    """GPU milliseconds by kernel, and of copies to the GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        model.forward(batch_of(ids), lambda: None)
        torch.cuda.synchronize()
    sums: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in recorded.key_averages():
        sums[event.key] += event.self_device_time_total / 1e3
        counts[event.key] += event.count
    rows = (f"{total:10.2f} ms  {counts[name]:6}  {name[:90]}" for name, total in sums.most_common(25))
    return "\n".join((f"{len(ids)} tokens", *rows))


if __name__ == "__main__":
    main()
