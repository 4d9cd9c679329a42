"""Routed experts on the CPU if layers are requested with gaps between them, as in the CPU/GPU hybrid: when each thread
wakes, and how fast memory is read.

python benchmarks/hybrid/layer_gaps.py MODEL.gguf [--gaps 0 100 300 1000] [--batch 1 4] [--threads N] [--rounds 20]

Prints one JSON line per case. A case is a gap in microseconds, during which the calling thread spins. The pool is
either kept awake, as the expert transfer does during a step, or not. Figures are medians over all layers and rounds in
microseconds, counted from the request for a layer: when the first and the last of the other threads join, when gate and
up are done, when down is done, and when the call returns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ballast._core import kernels
from ballast.engine.threads import start_threads
from ballast.model.layers.feed_forward import EXPERTS
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.model.weights import load_weights
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record

WARM_ROUNDS = 3
READ_BYTES = 1 << 31
"""Buffer size for the memory measurement. It exceeds the last-level cache of any machine."""


class LayerTimes(NamedTuple):
    """Seconds since the layer was requested, and the gap before it."""

    gap: float
    first_joined: float
    last_joined: float
    gate_up: float
    down: float
    returned: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gaps", type=int, nargs="*", default=[0, 100, 300, 1000], help="microseconds")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if options.threads < 2:
        parser.error(f"--threads is {options.threads}; expected 2 or more: one is the caller, who never sleeps")
    gguf = open_gguf(options.model)
    spec = read_spec(gguf, None)
    pool, why_unpinned = start_threads(options.threads, "auto")
    weights = load_weights(gguf, spec, spec.vocab_size, Packing(pool, kernels.usable_isas()[0], 2), lambda _: None)
    layers = [layer[EXPERTS] for layer in weights.layers if EXPERTS in layer]
    for batch in options.batch:
        for gap_us in options.gaps:
            for is_kept_awake in (False, True):
                times, gb_per_s = measure(pool, layers, spec, batch, gap_us * 1e-6, is_kept_awake, options.rounds)
                figures = {f"{name}_us": round(float(us), 1) for name, us in zip(times._fields, times, strict=True)}
                kept = "kept awake" if is_kept_awake else "left to sleep"
                case = f"{options.model.name}: B={batch}, gaps of {gap_us} us, {kept}"
                memory = round(kernels.measure_read_speed(pool, READ_BYTES) / 1e9, 1)
                record = bench_record(
                    "hybrid/layer_gaps",
                    case,
                    threads=options.threads,
                    pinned=not why_unpinned,
                    **figures,
                    gb_per_s=gb_per_s,
                    memory_gb_per_s=memory,
                )
                print(record, flush=True)


def measure(
    pool: kernels.ThreadPool,
    layers: Sequence[kernels.Experts],
    spec: ModelSpec,
    batch: int,
    gap_s: float,
    is_kept_awake: bool,
    rounds: int,
) -> tuple[LayerTimes, float]:
    """Medians over layers in microseconds, and of the rates in GB/s at which experts were read."""
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, spec.hidden), dtype=np.float32)
    shares = np.full((batch, spec.routing.num_experts_used), 1 / spec.routing.num_experts_used, np.float32)
    out = np.empty_like(x)
    every_expert = np.tile(np.arange(spec.routing.num_experts, dtype=np.int32), (batch, 1))
    found: list[LayerTimes] = []
    rates: list[float] = []
    for turn in range(WARM_ROUNDS + rounds):
        draws = [rng.permuted(every_expert, axis=1)[:, : spec.routing.num_experts_used].copy() for _ in layers]
        scope: AbstractContextManager[None] = kernels.KeepAwake(pool) if is_kept_awake else nullcontext()
        with scope:
            requested_at = []
            pool.start_recording()
            for experts, ids in zip(layers, draws, strict=True):
                begin = time.monotonic()
                while time.monotonic() < begin + gap_s:
                    pass
                requested = time.monotonic()
                experts.forward(pool, x, ids, shares, out)
                requested_at.append((begin, requested, time.monotonic()))
            loops = pool.stop_recording()
        if turn < WARM_ROUNDS:
            continue
        per_layer = len(loops) // len(layers)
        for index, (begin, requested, returned) in enumerate(requested_at):
            # The last two loops. For a large batch, a loop before them rounds the activations.
            gate_up, down = loops[index * per_layer : (index + 1) * per_layer][-2:]
            first, last = (at - requested if at else float("nan") for at in gate_up[1:3])
            found.append(
                LayerTimes(
                    requested - begin, first, last, gate_up[3] - requested, down[3] - requested, returned - requested
                )
            )
            size = np.unique(draws[index]).size * expert_bytes(layers[index])
            rates.append(size / (returned - requested) / 1e9)
    medians = np.nanmedian(np.array(found), axis=0) * 1e6
    return LayerTimes(*medians.tolist()), round(float(np.median(rates)), 1)


def expert_bytes(experts: kernels.Experts) -> int:
    """Packed bytes of one expert."""
    return sum(num_bytes for _, (_, num_bytes) in experts.memory) // experts.num_experts


if __name__ == "__main__":
    main()
