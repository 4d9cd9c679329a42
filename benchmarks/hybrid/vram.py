"""GPU memory that a model really uses, compared with `ballast plan`: layer by layer, then by use.

python benchmarks/hybrid/vram.py MODEL.gguf [any option of `ballast serve`]

Loads the model as `ballast serve --device cuda:0` does, then runs the steps that need most memory: a full chunk, and a
full batch of decodes at the end of the cache. Prints one JSON line. Without a GPU, it prints only the plan, which
accepts --vram_limit.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ballast import cli
from ballast.config.options import Config
from ballast.engine.startup.loading import load_runner
from ballast.host.gpu import why_unusable
from ballast.model.batch import Batch
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.tensors import used_tensors
from ballast.plan import MemoryPlan, plan_for, planned, planned_settings
from ballast.plan.gpus.device import computes_on_gpu, hybrid_bytes
from ballast.plan.gpus.hybrid import whole_modules
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.bench_record import bench_record

MIB = 1 << 20


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(f"vram.py: a model file is expected first\n\n{__doc__}")
    file, *options = sys.argv[1:]
    config = cli.serve_config(["--gguf_path", file, "--device", "cuda:0", *options])
    gguf = open_gguf(Path(file))
    spec = read_spec(gguf, None)
    plan = plan_for(config, gguf, spec)
    [only] = plan.devices
    figures: dict[str, object] = {
        f"plan_mib_{use.name.replace(' ', '_').lower()}": mib(use.num_bytes) for use in only.uses
    }
    figures["plan_mib"] = mib(only.needed_bytes)
    if why_unusable("cuda:0") is None:
        figures |= measure(config, plan, gguf, spec)
    else:
        print(f"plan alone: {why_unusable('cuda:0')}", file=sys.stderr)
    print(bench_record("hybrid/vram", f"{Path(file).name}: {' '.join(options)}", **figures), flush=True)


def planned_layers(plan: MemoryPlan, gguf: GgufModel, spec: ModelSpec) -> list[int]:
    """Bytes of each layer that the plan puts on the device."""
    layers: Counter[int] = Counter()
    tensors, whole = used_tensors(spec), whole_modules(spec, plan.gpu_experts)
    for name, _, num_bytes in hybrid_bytes(gguf, spec, "avx512", (1,)):
        tensor = tensors[name]
        if name.startswith("blk.") and (computes_on_gpu(tensor) or tensor.module in whole):
            layers[int(name.split(".")[1])] += num_bytes
    return [layers[index] for index in range(spec.num_layers)]


def measure(requested: Config, plan: MemoryPlan, gguf: GgufModel, spec: ModelSpec) -> dict[str, object]:
    import torch

    config, on_paper = planned(requested, plan), planned_layers(plan, gguf, spec)
    prefill_is_auto = requested.scheduling.prefill_chunk_size is None
    settings = replace(planned_settings(config, plan), prefill_is_auto=prefill_is_auto)

    used_before = nvidia_smi_mib()
    after: list[int] = []
    torch.cuda.init()
    runner = load_runner(gguf, spec, spec.vocab_size, settings, lambda _: after.append(torch.cuda.memory_allocated()))
    loaded = torch.cuda.memory_allocated()
    layers = np.diff([0, *after[: spec.num_layers]])
    worst = max(range(spec.num_layers), key=lambda index: layers[index] / on_paper[index])
    torch.cuda.reset_peak_memory_stats()
    run_steps(runner, config, spec)
    torch.cuda.synchronize()
    used, reserved = nvidia_smi_mib() - used_before, mib(torch.cuda.memory_reserved())
    return {
        "layers_mib": [mib(size) for size in layers],
        "plan_layers_mib": [mib(size) for size in on_paper],
        "largest_layer_ratio": round(float(layers[worst] / on_paper[worst]), 4),
        "loaded_mib": mib(loaded),
        "work_mib": mib(torch.cuda.max_memory_allocated() - loaded),
        "reserved_mib": reserved,
        "used_mib": used,
        "besides_torch_mib": round(used - reserved, 1),
        "gpu": torch.cuda.get_device_name(),
    }


def run_steps(runner: Runner, config: Config, spec: ModelSpec) -> None:
    """Runs the steps that need most memory, at the end of the cache. Nothing is computed before them; rows of zeros
    have the same size."""
    scheduling = config.scheduling
    assert scheduling.cache_lens is not None, "the configuration has its plan's lengths"
    cache, batch_size = min(scheduling.cache_lens, spec.context_length), scheduling.max_batch_size
    longest = max(scheduling.chunk_size, scheduling.prefill_chunk_size or 0)
    block = scheduling.block_tokens
    share = cache // batch_size // block * block
    for rows in (
        [(cache, longest)],
        [(share, 1)] * batch_size,
        [(share, 1)] * (batch_size - 1) + [(share, scheduling.chunk_size - batch_size + 1)],
    ):
        for _ in range(2):
            runner.forward(batch_of(rows, block, spec), lambda: None)


def batch_of(rows: Sequence[tuple[int, int]], block_tokens: int, spec: ModelSpec) -> Batch:
    """Makes a step with one request per row, from (tokens of the request, tokens that this step adds)."""
    rng = np.random.default_rng(0)
    positions, slots, blocks, ends, block_ends = [], [], [], [0], [0]
    for length, added in rows:
        own = np.arange(-(-length // block_tokens), dtype=np.int32) + 1 + block_ends[-1]
        at = np.arange(length - added, length, dtype=np.int32)
        positions.append(at)
        slots.append(own[at // block_tokens] * block_tokens + at % block_tokens)
        blocks.append(own)
        ends.append(ends[-1] + added)
        block_ends.append(block_ends[-1] + own.size)
    return Batch(
        token_ids=rng.integers(0, spec.vocab_size, ends[-1]).astype(np.int32),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots).astype(np.int32),
        query_indptr=np.array(ends, np.int32),
        kv_indptr=np.array(block_ends, np.int32),
        kv_indices=np.concatenate(blocks),
        sampled=np.array(ends[1:], np.int64) - 1,
    )


def nvidia_smi_mib() -> float:
    """Device memory in use by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout)


def mib(num_bytes: float) -> float:
    return round(num_bytes / MIB, 1)


if __name__ == "__main__":
    main()
