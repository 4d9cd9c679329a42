"""Timeline of a GPU in one layer of a decode step: the kernels and copies of an MoE layer, from torch's profiler.

python benchmarks/hybrid/timeline.py MODEL.gguf [--batch 1 16] [--context 512] [--threads N]

Prints a table of the middle MoE layer of a step of median length, from the layer's transfer of activations to the next
layer's transfer. Then prints one JSON line with the parts of the layer's time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch._C._autograd import DeviceType

from ballast.engine.startup.build import DeviceSettings, EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import why_unusable
from ballast.model.batch import Batch
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record

BLOCK_TOKENS = 32
WARM_STEPS, STEPS = 10, 15
HAND_OVER = "send"
"""The kernel of model/hybrid/handoff/transport_kernels.py that carries a layer's activations to the host."""


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel or copy of the device, in microseconds."""

    name: str
    begin: float
    end: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--context", type=int, default=512, help="tokens of each request before the step")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    reason = why_unusable("cuda:0")
    if reason is not None:
        sys.exit(f"timeline.py: {reason}")
    gguf = open_gguf(options.model)
    spec = read_spec(gguf, None)
    most = max(options.batch)
    settings = EngineSettings(
        cache_lens=most * (options.context + WARM_STEPS + STEPS + BLOCK_TOKENS),
        max_batch_size=most,
        max_new_tokens=64,
        chunk_size=max(256, most),
        prefill_chunk_size=max(256, most),
        max_queue=most,
        block_tokens=BLOCK_TOKENS,
        cpu_threads=options.threads,
        devices=(DeviceSettings("cuda:0", range(spec.num_layers)),),
    )
    runner = load_runner(gguf, spec, spec.vocab_size, settings)
    for batch in options.batch:
        show(batch, options, spec, profile(runner, batch, options.context, spec))


def profile(runner: Runner, batch: int, context: int, spec: ModelSpec) -> list[list[Span]]:
    """Kernels and copies of the device in each step."""
    for step in range(WARM_STEPS):
        runner.forward(decode_batch(batch, context + step, spec), lambda: None)
    torch.cuda.synchronize()
    found = []
    for step in range(STEPS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
            runner.forward(decode_batch(batch, context + WARM_STEPS + step, spec), lambda: None)
            torch.cuda.synchronize()
        events = [event for event in trace.events() if event.device_type == DeviceType.CUDA]
        spans = [Span(short(event.name), event.time_range.start, event.time_range.end) for event in events]
        found.append(sorted(spans, key=lambda span: span.begin))
    return found


def show(batch: int, options: argparse.Namespace, spec: ModelSpec, steps: Sequence[list[Span]]) -> None:
    lengths = [step[-1].end - step[0].begin for step in steps]
    step = steps[lengths.index(statistics.median_low(lengths))]
    layers = moe_layers(step)
    if not layers:
        names = sorted({span.name for span in step})
        sys.exit(f"timeline.py: nothing is handed to the host; the step has {names}")
    layer = layers[len(layers) // 2]
    last = layer[0].begin
    for span in layer:
        gap = span.begin - last
        begin, took = span.begin - layer[0].begin, span.end - span.begin
        print(f"{begin:9.1f} us  {f'idle {gap:8.1f}' if gap > 1 else '':13}  takes {took:8.1f}  {span.name}")
        last = max(last, span.end)
    gaps = [max(0.0, after.begin - before.end) for before, after in itertools.pairwise(layer)]
    busy = sum(span.end - span.begin for span in layer[:-1])
    per_layer = [own[-1].begin - own[0].begin for own in layers]
    print(
        bench_record(
            "hybrid/timeline",
            f"{options.model.name}: decode B={batch}, {options.context} tokens each",
            threads=options.threads,
            us_of_step=round(statistics.median(lengths), 1),
            us_of_moe_layer=round(statistics.median(per_layer), 1),
            us_device_busy=round(busy, 1),
            us_longest_wait=round(max(gaps), 1),
            us_other_gaps=round(sum(gaps) - max(gaps), 1),
            pieces=len(layer) - 1,
            gpu=torch.cuda.get_device_name(),
        ),
        flush=True,
    )


def moe_layers(step: Sequence[Span]) -> list[list[Span]]:
    """Splits a step where a layer transfers to the host. Each part ends with the next layer's transfer, the last one
    with the step's copy of its logits."""
    starts = [index for index, span in enumerate(step) if span.name == HAND_OVER]
    return [list(step[begin : end + 1]) for begin, end in itertools.pairwise([*starts, len(step) - 1])]


def decode_batch(batch: int, position: int, spec: ModelSpec) -> Batch:
    """Each request adds its token at `position`. The positions before it keep the cache's arbitrary content."""
    blocks = position // BLOCK_TOKENS + 1
    own = np.arange(1, 1 + batch * blocks, dtype=np.int32).reshape(batch, blocks)
    ids = np.random.default_rng(position).integers(0, spec.vocab_size, batch)
    return Batch(
        token_ids=ids.astype(np.int32),
        positions=np.full(batch, position, np.int32),
        slots=(own[:, -1] * BLOCK_TOKENS + position % BLOCK_TOKENS).astype(np.int32),
        query_indptr=np.arange(batch + 1, dtype=np.int32),
        kv_indptr=(np.arange(batch + 1) * blocks).astype(np.int32),
        kv_indices=own.reshape(-1).copy(),
        sampled=np.arange(batch),
    )


def short(name: str) -> str:
    """A kernel's name without its types."""
    plain = name.replace("void ", "").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return re.sub(r"[<(].*", "", plain)[:60] if not plain.startswith("Mem") else plain


if __name__ == "__main__":
    main()
