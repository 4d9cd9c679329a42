"""Start a model as `ballast serve` does, with or without a GPU, and measure loading, decode and prefill.

python benchmarks/engine/whole_model.py MODEL.gguf [--batch 1 4 8 16] [--prefill 4096 32768] [--steps 32] [--repeats 2]
                                        [--case NAME] [--once [--only greedy | sampled]] [any option of `ballast serve`]

For models that take minutes to load: every line is printed as soon as it is known. The first line is the start: from
opening the file to a model that answers, in seconds and in file bytes per second. GPU kernels may have to be compiled;
`weights_s` is when the last layer's weights are loaded. Then follow decode for each batch size, alternately greedy and
sampled as DeepSeek-R1 recommends, and prefill. If the GPU reads a share of the experts across PCIe, decode is also
measured without it. Prompts are random token ids.

`host_gb_per_s` is the host memory that a step reads, divided by the whole time of the step: its distinct experts if all
are equally likely, whether the CPU reads them or the GPU reads them across PCIe. `memory_gb_per_s` is the speed at
which the same threads read a buffer that is many times as large as the last-level cache. A small buffer would partly be
in the cache.

--once is for comparisons that start one engine after the other: every case is measured once, and decode counts all
steps instead of the median one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ballast import cli
from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.load_progress import Pace
from ballast.engine.startup.loading import load_runner
from ballast.host.machine import read_memory
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.plan import MemoryPlan, plan_for, planned, planned_settings
from ballast.weights.gguf import GgufModel, block_of, open_gguf
from devkit.bench_record import bench_record
from devkit.timing import decode_times, median_decode_s

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=1, temperature=0.6, top_p=0.95)
MOST_READ_BYTES = 32 << 30
SHARE_READ = 4
"""Largest part of the available memory that is used to measure the read speed."""
COPIED_BYTES = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 8, 16])
    parser.add_argument("--prefill", type=int, nargs="*", default=[4096])
    parser.add_argument("--prompt", type=int, default=64, help="context tokens per request before decoding")
    parser.add_argument("--steps", type=int, default=32, help="number of timed decode steps per turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--case", default="", help="suffix of the records' names")
    parser.add_argument("--once", action="store_true", help="measure each case once, over all its steps")
    parser.add_argument("--only", choices=("greedy", "sampled"), help="with --once: decode in one way instead of both")
    options, serve = parser.parse_known_args()
    begin = time.perf_counter()
    gguf = open_gguf(options.model)
    spec = read_spec(gguf, None)
    config = cli.serve_config(["--gguf_path", str(options.model), *serve])
    plan = plan_for(config, gguf, spec)
    settings = planned_settings(planned(config, plan), plan)
    pace = Pace()
    # messages about the progress of a start
    loaded_s, weights_share = 0.0, 1.0 if config.machine.device == "cpu" else 0.9

    def progress(share: float) -> None:
        nonlocal loaded_s
        passed = time.perf_counter() - begin
        if share <= weights_share:
            loaded_s = passed
        if pace.is_due(share, passed):
            print(f"{share:.1%} after {passed:.1f} s", file=sys.stderr, flush=True)

    runner = load_runner(gguf, spec, spec.vocab_size, settings, progress)
    start = {"start_s": time.perf_counter() - begin, "weights_s": loaded_s}
    if options.once:
        measure_once(spec, plan, settings, runner, start, options, serve)
    else:
        measure(gguf, spec, plan, settings, runner, start, options, serve)


def measure_once(
    spec: ModelSpec,
    plan: MemoryPlan,
    settings: EngineSettings,
    runner: Runner,
    start: dict[str, float],
    options: argparse.Namespace,
    serve: list[str],
) -> None:
    def report(case: str, **figures: object) -> None:
        name = f"{options.model.name}{options.case and ', '}{options.case}: {case}"
        experts = {
            "experts_on_gpu": sum(map(len, plan.gpu_experts)),
            "pcie_share": measured_share(runner),
            "devices": [f"{each.name}: {len(each.layers)} layers" for each in settings.devices],
            "prefill_chunk_size": settings.prefill_chunk_size,
        }
        common = {"options": " ".join(serve), "threads": settings.cpu_threads, **experts}
        print(bench_record("engine/whole_model", name, **common, **figures), flush=True)

    ids = random_ids(spec)
    report("start", **{name: round(seconds, 2) for name, seconds in start.items()})
    for num_tokens in options.prefill:
        prefill_seconds(runner, settings, take(ids, num_tokens))  # the first one of a size compiles kernels
        before = link_bytes(runner)
        took = prefill_seconds(runner, settings, take(ids, num_tokens))
        read = [round((after - first) / 1e9, 1) for first, after in zip(before, link_bytes(runner), strict=True)]
        figures = {"seconds": round(took, 3), "tokens_per_s": round(num_tokens / took, 1), "gb_over_each_link": read}
        report(f"prefill {num_tokens}", **figures)
    for batch in options.batch[:1]:
        # the first call touches the memory
        decode_times(decoding_core(runner, settings, ids, batch, GREEDY, options), batch)
    for batch in options.batch:
        ways = {"greedy": ("", GREEDY), "sampled": (", sampled", SAMPLED)}
        for name, sampling in [ways[options.only]] if options.only else ways.values():
            core = decoding_core(runner, settings, ids, batch, sampling, options)
            step_s = statistics.fmean(decode_times(core, batch))
            figures = {"batch": batch, "steps": options.steps, "step_s": round(step_s, 5)}
            report(f"decode B={batch}{name}", **figures, tokens_per_s=round(batch / step_s, 2))


def measure(
    gguf: GgufModel,
    spec: ModelSpec,
    plan: MemoryPlan,
    settings: EngineSettings,
    runner: Runner,
    start: dict[str, float],
    options: argparse.Namespace,
    serve: list[str],
) -> None:
    pool = kernels.ThreadPool(settings.cpu_threads)
    pcie, gpu = gpu_figures(settings.devices[0].name if settings.devices else "cpu")
    memory = kernels.measure_read_speed(pool, min(MOST_READ_BYTES, read_memory().available_bytes // SHARE_READ))

    def report(case: str, **figures: object) -> None:
        name = f"{options.model.name}{options.case and ', '}{options.case}: {case}"
        common = {"options": " ".join(serve), "threads": settings.cpu_threads, "gpu": gpu}
        print(bench_record("engine/whole_model", name, **common, **figures), flush=True)

    num_bytes = sum(info.num_bytes for info in gguf.tensors.values())
    report(
        "start",
        **{name: round(seconds, 2) for name, seconds in start.items()},
        file_gb=round(num_bytes / 1e9, 2),
        gb_per_s=round(num_bytes / start["start_s"] / 1e9, 2),
        experts_on_gpu=sum(map(len, plan.gpu_experts)),
        cache_lens=settings.cache_lens,
        prefill_chunk_size=settings.prefill_chunk_size,
        pcie_gb_per_s=round(pcie / 1e9, 1),
        memory_gb_per_s=round(memory / 1e9, 1),
        measured_share=measured_share(runner),
    )
    ids = random_ids(spec)

    def decode(name: str, samplings: dict[str, SamplingParams]) -> None:
        for batch in options.batch:
            read = host_expert_bytes(gguf, spec, plan, batch)
            for sampled, figures in decode_cases(runner, settings, ids, batch, samplings, options):
                figures["host_experts_gb_per_step"] = round(read / 1e9, 3)
                figures["host_gb_per_s"] = round(read / figures["step_s"] / 1e9, 1)
                figures["memory_gb_per_s"] = round(memory / 1e9, 1)
                report(f"decode B={batch}{name}{sampled}", **figures)

    decode("", {"": GREEDY, ", sampled": SAMPLED})
    for num_tokens in options.prefill:
        times = [prefill_seconds(runner, settings, take(ids, num_tokens)) for _ in range(options.repeats + 1)][1:]
        took = statistics.median(times)
        report(f"prefill {num_tokens}", seconds=round(took, 3), tokens_per_s=round(num_tokens / took, 1))
    if measured_share(runner):
        set_share(runner, 0.0)
        decode(", no share", {"": GREEDY})


def decode_cases(
    runner: Runner,
    settings: EngineSettings,
    ids: Iterator[int],
    batch: int,
    samplings: dict[str, SamplingParams],
    options: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, float]]]:
    """Measures each of `samplings`, alternately."""
    times: dict[str, list[float]] = {name: [] for name in samplings}
    for _ in range(options.repeats):
        for name, sampling in samplings.items():
            core = decoding_core(runner, settings, ids, batch, sampling, options)
            times[name].append(median_decode_s(core, batch))
    for name, found in times.items():
        step_s = statistics.median(found)
        yield (
            name,
            {
                "batch": batch,
                "step_s": round(step_s, 5),
                "step_s_least": round(min(found), 5),
                "step_s_most": round(max(found), 5),
                "tokens_per_s": round(batch / step_s, 2),
            },
        )


def decoding_core(
    runner: Runner,
    settings: EngineSettings,
    ids: Iterator[int],
    batch: int,
    sampling: SamplingParams,
    options: argparse.Namespace,
) -> EngineCore:
    """Decode with `batch` requests, with the prompt and reply lengths of the options."""
    core = EngineCore(runner, scheduler_config(settings))
    params = replace(sampling, max_tokens=options.steps + 2, min_tokens=options.steps + 2)
    for seq in range(1, batch + 1):
        core.add(seq, Request(str(seq), take(ids, options.prompt), params), 0)
    return core


def prefill_seconds(runner: Runner, settings: EngineSettings, ids: tuple[int, ...]) -> float:
    """Seconds from a request's arrival to its only token."""
    core = EngineCore(runner, scheduler_config(settings))
    begin = time.perf_counter()
    core.add(1, Request("1", ids, GREEDY), 0)
    while not core.step().events:
        pass
    return time.perf_counter() - begin


def host_expert_bytes(gguf: GgufModel, spec: ModelSpec, plan: MemoryPlan, batch: int) -> float:
    """Bytes of routed experts in host memory that a step reads, if all experts are equally likely."""
    distinct = 1 - (1 - spec.routing.num_experts_used / spec.routing.num_experts) ** batch
    total = 0.0
    for name, info in gguf.tensors.items():
        if "_exps." not in name:
            continue
        layer = (block_of(name) or 0) - spec.routed_layers[0]
        on_gpu = len(plan.gpu_experts[layer]) if plan.gpu_experts else 0
        total += info.num_bytes * distinct * (1 - on_gpu / spec.routing.num_experts)
    return total


def gpu_figures(device: str) -> tuple[float, str]:
    """(bytes a second from pinned host memory, name)"""
    if device == "cpu":
        return 0.0, ""
    import torch

    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    del target
    torch.cuda.empty_cache()
    return COPIED_BYTES / min(times), torch.cuda.get_device_name(device)


def measured_share(runner: Runner) -> float:
    counts = getattr(runner, "device_counts", None)
    return 0.0 if counts is None else float(counts.pcie_share)


def link_bytes(runner: Runner) -> list[int]:
    """Bytes of experts that have crossed the link of each GPU."""
    counts = getattr(runner, "device_counts", None)
    return [] if counts is None else [each.expert_bytes_over_pcie for each in counts.devices]


def set_share(runner: Runner, share: float) -> None:
    from ballast.model.hybrid.model import HybridModel  # needs torch, which CPU-only installations do not have

    if isinstance(runner, HybridModel):
        runner.set_pcie_share(share)


def random_ids(spec: ModelSpec) -> Iterator[int]:
    rng = np.random.default_rng(0)
    while True:
        yield from rng.integers(0, spec.vocab_size, 4096).tolist()


def take(ids: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(count))


if __name__ == "__main__":
    main()
