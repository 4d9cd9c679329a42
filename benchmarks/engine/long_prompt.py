"""Time and memory of one long prompt on a GPU with streamed routed experts, in passes of several lengths.

python benchmarks/engine/long_prompt.py MODEL.gguf [--prompt_tokens 32768] [--passes 4096 16384] [--repeats 2]
                                        [--profile] [any option of `ballast serve`]

Loads the model once, as `ballast serve --device cuda:0` does. The prompt is random tokens. The time is from the
request's arrival to its first token. Prints one JSON line per length of a pass. --profile shows the GPU time of the
longest passes by kernel. Without a GPU, it prints a message instead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from ballast import cli
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import why_unusable
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.plan import plan_for, planned, planned_settings
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt_tokens", type=int, default=32768)
    parser.add_argument("--passes", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    options, serve = parser.parse_known_args()
    if (reason := why_unusable("cuda:0")) is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return
    measure(options, serve)


def measure(options: argparse.Namespace, serve: list[str]) -> None:
    import torch

    config = cli.serve_config(["--gguf_path", str(options.model), "--device", "cuda:0", *serve])
    gguf = open_gguf(options.model)
    spec = read_spec(gguf, None)
    plan = plan_for(config, gguf, spec)
    [only] = plan.devices
    uses = {use.name: use.num_bytes for use in only.uses}
    settings = planned_settings(planned(config, plan), plan)
    begin = time.perf_counter()
    runner = load_runner(gguf, spec, spec.vocab_size, settings)
    load_s = time.perf_counter() - begin
    ids = tuple(np.random.default_rng(0).integers(0, spec.vocab_size, options.prompt_tokens).tolist())
    loaded = torch.cuda.memory_allocated()
    for pass_tokens in options.passes:
        torch.cuda.reset_peak_memory_stats()
        times = [seconds(runner, settings, ids, pass_tokens) for _ in range(options.repeats + 1)][1:]
        took = statistics.median(times)
        print(
            bench_record(
                "engine/long_prompt",
                f"{options.model.name}: prompt of {len(ids)} in passes of {pass_tokens}",
                options=" ".join(serve),
                threads=settings.cpu_threads,
                seconds=round(took, 4),
                seconds_least=round(min(times), 4),
                seconds_most=round(max(times), 4),
                tokens_per_s=round(len(ids) / took, 1),
                work_mib=round((torch.cuda.max_memory_allocated() - loaded) / MIB, 1),
                plan_mib_work_buffers=round(uses["work buffers"] / MIB, 1),
                peak_mib=round(torch.cuda.max_memory_allocated() / MIB, 1),
                reserved_mib=round(torch.cuda.max_memory_reserved() / MIB, 1),
                plan_mib=round(only.needed_bytes / MIB, 1),
                plan_tokens=plan.numbers.step_tokens,
                load_s=round(load_s, 1),
                gpu=torch.cuda.get_device_name(),
            ),
            flush=True,
        )
    if options.profile:
        print(table(runner, settings, ids, max(options.passes)), file=sys.stderr)


def seconds(runner: Runner, settings: EngineSettings, ids: tuple[int, ...], pass_tokens: int) -> float:
    """Seconds from a request's arrival to its only token. The prompt is not in the prefix cache."""
    own = replace(settings, chunk_size=min(settings.chunk_size, pass_tokens), prefill_chunk_size=pass_tokens)
    core = EngineCore(runner, scheduler_config(own))
    begin = time.perf_counter()
    core.add(1, Request("1", ids, SamplingParams(max_tokens=1, temperature=0.0)), 0)
    while not core.step().events:
        pass
    return time.perf_counter() - begin


def table(runner: Runner, settings: EngineSettings, ids: tuple[int, ...], pass_tokens: int) -> str:
    """GPU milliseconds by kernel, over the whole prompt."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        took = seconds(runner, settings, ids, pass_tokens)
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in recorded.key_averages():
        sums[event.key] += event.self_device_time_total / 1e3
        counts[event.key] += event.count
    rows = (f"{total:10.2f} ms  {counts[name]:6}  {name[:100]}" for name, total in sums.most_common(40))
    return "\n".join((f"{len(ids)} tokens in passes of {pass_tokens}: {took:.3f} s, profiled", *rows))


if __name__ == "__main__":
    main()
