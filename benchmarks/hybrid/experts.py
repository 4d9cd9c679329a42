"""Decode steps of a hybrid model while the GPU computes some of the routed experts, read across PCIe or from its own
memory.

python benchmarks/hybrid/experts.py MODEL.gguf [--threads 16 12] [--batch 1 4] [--gpu_experts none all] [--steps 32]
                                    [--repeats 3]

For each number of threads, the model is loaded once with experts in host memory. Steps with the share that was measured
at start alternate with steps without it. With "all", the model is loaded again with every expert in GPU memory. Prompts
are random token ids. Prints one JSON line per case. Without a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import DeviceSettings, EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import why_unusable
from ballast.model.hybrid.model import HybridModel
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.bench_record import bench_record
from devkit.timing import median_decode_s

PROMPT_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--gpu_experts", choices=("none", "all"), nargs="+", default=["none", "all"])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    gguf_model = open_gguf(options.model)
    spec = read_spec(gguf_model, None)
    settings = EngineSettings(
        cache_lens=max(options.batch) * (PROMPT_TOKENS + options.steps + 64),
        max_batch_size=max(options.batch),
        max_new_tokens=options.steps + 2,
        chunk_size=max(options.batch) * PROMPT_TOKENS,
        prefill_chunk_size=max(options.batch) * PROMPT_TOKENS,
        max_queue=max(options.batch),
        devices=(DeviceSettings("cuda:0", range(spec.num_layers)),),
        stream_from_tokens=0,
    )
    if "none" in options.gpu_experts:
        for threads in options.threads:
            for line in across_pcie(gguf_model, spec, replace(settings, cpu_threads=threads, pcie_share=None), options):
                print(line, flush=True)
    if "all" in options.gpu_experts:
        everything = (tuple(range(spec.routing.num_experts)),) * len(spec.routed_layers)
        for line in on_gpu(gguf_model, spec, replace(settings, gpu_experts=everything), options):
            print(line, flush=True)


def across_pcie(
    gguf_model: GgufModel, spec: ModelSpec, settings: EngineSettings, options: argparse.Namespace
) -> Iterator[str]:
    model = load(gguf_model, spec, settings)
    core, measured = EngineCore(model, scheduler_config(settings)), model.device_counts.pcie_share
    times: dict[tuple[int, float], list[float]] = {}
    for _ in range(options.repeats):
        for share in (0.0, measured):
            model.set_pcie_share(share)
            for batch, seconds in decode(core, spec, options.batch, options.steps):
                times.setdefault((batch, share), []).append(seconds)
    for batch in options.batch:
        off, on = times[batch, 0.0], times[batch, measured]
        yield bench_record(
            "hybrid/experts",
            f"{options.model.name}: experts in host memory, decode B={batch}",
            threads=settings.cpu_threads,
            pcie_share=measured,
            tokens_per_s_off=round(batch / statistics.median(off), 2),
            tokens_per_s_on=round(batch / statistics.median(on), 2),
            gain=round(statistics.median(off) / statistics.median(on), 3),
            step_ms_off=[round(seconds * 1e3, 3) for seconds in off],
            step_ms_on=[round(seconds * 1e3, 3) for seconds in on],
            gpu=torch.cuda.get_device_name(),
        )


def on_gpu(
    gguf_model: GgufModel, spec: ModelSpec, settings: EngineSettings, options: argparse.Namespace
) -> Iterator[str]:
    core = EngineCore(load(gguf_model, spec, settings), scheduler_config(settings))
    times: dict[int, list[float]] = {}
    for _ in range(options.repeats):
        for batch, seconds in decode(core, spec, options.batch, options.steps):
            times.setdefault(batch, []).append(seconds)
    for batch, found in times.items():
        yield bench_record(
            "hybrid/experts",
            f"{options.model.name}: experts on the GPU, decode B={batch}",
            tokens_per_s=round(batch / statistics.median(found), 2),
            step_ms=[round(seconds * 1e3, 3) for seconds in found],
            vram_gb=round(torch.cuda.memory_reserved() / 1e9, 2),
            gpu=torch.cuda.get_device_name(),
        )


def load(gguf_model: GgufModel, spec: ModelSpec, settings: EngineSettings) -> HybridModel:
    gc.collect()  # frees the previous model
    torch.cuda.empty_cache()
    model = load_runner(gguf_model, spec, spec.vocab_size, settings)
    assert isinstance(model, HybridModel)
    return model


def decode(core: EngineCore, spec: ModelSpec, batches: Sequence[int], num_steps: int) -> Iterator[tuple[int, float]]:
    """Batch size and median step time in seconds."""
    rng = np.random.default_rng(0)
    seq = 1
    for batch in batches:
        for _ in range(batch):
            ids = tuple(rng.integers(0, spec.vocab_size, PROMPT_TOKENS).tolist())
            core.add(seq, Request(str(seq), ids, SamplingParams(max_tokens=num_steps + 2, temperature=0.0)), 0)
            seq += 1
        yield batch, median_decode_s(core, batch)


if __name__ == "__main__":
    main()
