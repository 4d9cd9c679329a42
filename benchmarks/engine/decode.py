"""Speed of the whole engine, from scheduler to sampling. Measures prefill, and decode at several batch sizes, both
greedy and sampled as DeepSeek-R1 recommends (temperature 0.6, top_p 0.95).

python benchmarks/engine/decode.py [MODEL.gguf] [--threads N] [--batch 1 4 8 16] [--prefill 512] [--activation_bytes 1]
                                   [--packed_dir DIR]
                                   [--device cuda:0 [--pcie_share 0.25] [--stream_from_tokens 0] [--all_on_gpu]]

Without a file, a tiny model shows the cost of a step apart from its arithmetic. Prompts are random token ids, so the
file needs no vocabulary and tokens choose different experts. Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import DeviceSettings, EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.host.filesystem import read_file_system
from ballast.host.isa import chosen_isa
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.bench_record import bench_record

SAMPLINGS = {  # by the suffix of a case's name
    "": SamplingParams(max_tokens=1, temperature=0.0),
    ", sampled": SamplingParams(max_tokens=1, temperature=0.6, top_p=0.95),
}
READ_BYTES = 1 << 31
"""Buffer size for the memory measurement. It exceeds the last-level cache of a machine that runs such models."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 8, 16])
    parser.add_argument("--prompt", type=int, default=64, help="context tokens per request before decoding")
    parser.add_argument("--steps", type=int, default=64, help="number of timed decode steps")
    parser.add_argument(
        "--activation_bytes", type=int, choices=(1, 2), help="bytes per activation; default: by each matrix's type"
    )
    parser.add_argument("--prefill", type=int, nargs="*", default=[512])
    parser.add_argument("--packed_dir", type=Path, help="folder for packed weights; a second run maps them from there")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N for everything but the routed experts")
    parser.add_argument(
        "--pcie_share", type=float, help="share of a decode step's experts that crosses PCIe; default: measured"
    )
    parser.add_argument(
        "--stream_from_tokens",
        type=int,
        help="smallest prompt whose experts are streamed to the GPU; 0: never; default: measured",
    )
    parser.add_argument("--all_on_gpu", action="store_true", help="keep all routed experts in GPU memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.model or write_tiny_model(Path(directory)).gguf
        measure(open_gguf(path), path.name, options)


def measure(gguf_model: GgufModel, name: str, options: argparse.Namespace) -> None:
    spec = read_spec(gguf_model, None)
    most_tokens = max([max(options.batch, default=0) * (options.prompt + options.steps + 2), *options.prefill])
    settings = EngineSettings(
        cache_lens=most_tokens + 64 * 32,
        max_batch_size=max([1, *options.batch]),
        max_new_tokens=options.steps + 2,
        chunk_size=max([512, *options.prefill]),
        prefill_chunk_size=max([512, *options.prefill]),
        max_queue=max([1, *options.batch]),
        cpu_threads=options.threads,
        cpu_isa=chosen_isa(),
        activation_bytes=options.activation_bytes,
        packed_dir=options.packed_dir,
        devices=() if options.device == "cpu" else (DeviceSettings(options.device, range(spec.num_layers)),),
        pcie_share=options.pcie_share,
        stream_from_tokens=options.stream_from_tokens,
        gpu_experts=(tuple(range(spec.routing.num_experts)),) * len(spec.routed_layers) if options.all_on_gpu else (),
    )
    begin = time.perf_counter()
    runner = load_runner(gguf_model, spec, spec.vocab_size, settings)
    load_s = time.perf_counter() - begin
    core = EngineCore(runner, scheduler_config(settings))
    pool = kernels.ThreadPool(options.threads)
    for case, figures in cases(core, random_ids(spec), options):
        memory = kernels.measure_read_speed(pool, READ_BYTES)
        figures["memory_gb_per_s"] = round(memory / 1e9, 1)
        if case.startswith("decode"):
            num_bytes = bytes_read(gguf_model, spec, int(figures["batch"]))
            figures["gb_read_per_step"] = round(num_bytes / 1e9, 3)
            figures["gb_per_s"] = round(num_bytes / figures["step_s"] / 1e9, 1)
            figures["share_of_memory_speed"] = round(num_bytes / figures["step_s"] / memory, 3)
        print(
            bench_record(
                "engine/decode",
                f"{name}: {case}",
                isa=settings.cpu_isa,
                threads=options.threads,
                activation_bytes=options.activation_bytes,
                device=options.device,
                all_on_gpu=options.all_on_gpu,
                weights_in="memory" if options.packed_dir is None else read_file_system(options.packed_dir).kind,
                load_s=round(load_s, 2),
                **figures,
            ),
            flush=True,
        )


def cases(core: EngineCore, ids: Iterator[int], options: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    seq = 1
    for num_tokens in options.prefill:
        times = []
        for _ in range(2):  # the first call touches the memory
            core.add(seq, Request(str(seq), take(ids, num_tokens), SamplingParams(max_tokens=1)), 0)
            times.append(timed_step(core))
            seq += 1
        yield f"prefill {num_tokens}", {"step_s": round(times[-1], 5), "tokens_per_s": round(num_tokens / times[-1], 1)}
    for batch, (name, sampling) in product(options.batch, SAMPLINGS.items()):
        for _ in range(batch):
            params = replace(sampling, max_tokens=options.steps + 2, min_tokens=options.steps + 2)
            core.add(seq, Request(str(seq), take(ids, options.prompt), params), 0)
            seq += 1
        while (result := core.step()).kind != "decode" or len(result.events) < batch:
            pass
        times = []
        while True:
            begin = time.perf_counter()
            result = core.step()
            if len(result.events) < batch:
                break
            times.append(time.perf_counter() - begin)
        while core.step().num_tokens:
            pass
        step_s = float(np.median(times))
        yield (
            f"decode B={batch}{name}",
            {"batch": batch, "step_s": round(step_s, 5), "tokens_per_s": round(batch / step_s, 2)},
        )


def timed_step(core: EngineCore) -> float:
    begin = time.perf_counter()
    core.step()
    return time.perf_counter() - begin


def random_ids(spec: ModelSpec) -> Iterator[int]:
    rng = np.random.default_rng(0)
    while True:
        yield from rng.integers(0, spec.vocab_size, 4096).tolist()


def take(ids: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(count))


def bytes_read(gguf_model: GgufModel, spec: ModelSpec, batch: int) -> float:
    """Weight bytes that one step reads. For routed experts, it counts the expected number of distinct experts if
    `batch` tokens choose uniformly."""
    distinct = 1 - (1 - spec.routing.num_experts_used / spec.routing.num_experts) ** batch
    total = 0.0
    for name, info in gguf_model.tensors.items():
        if name == "token_embd.weight" and not spec.tied_output:
            continue
        total += info.num_bytes * (distinct if "_exps." in name else 1.0)
    return total


if __name__ == "__main__":
    main()
