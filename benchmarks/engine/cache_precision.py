"""What a CPU's KV cache of half precision adds to the error of quantized weights, on the built-in model and a text that
it was not trained on. Prints one JSON line per type of weights.

For every token: the divergence (KL, in nats) from the model of the same weights with a cache of float32, and that of
these weights from the float model. Reference kernels, which do not round activations.

python benchmarks/engine/cache_precision.py [--prompts 32] [--seed 11] [--text docs/about/how-it-works.md]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.layers.plane import KvType
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.tiny import write_built_in
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.generate import generate
from devkit.oracles import precision_prompts
from devkit.oracles.divergence import divergences, log_probabilities
from devkit.oracles.precision_prompts import text_prompts

QUANTS = ("f32", "q8_0", "q6_k", "q4_k")
SETTINGS = replace(precision_prompts.SETTINGS, cpu_isa="reference")


class Compared(Runner):
    """Runs each step in the model of every type of weights and cache."""

    def __init__(self, directory: Path) -> None:
        self._runners: dict[tuple[str, KvType], Runner] = {}
        types: tuple[KvType, ...] = ("fp32", "fp16")
        for quant in QUANTS:
            gguf = open_gguf(write_built_in(directory / quant, quant=quant).gguf)
            spec = read_spec(gguf, None)
            for kv_type in types:
                settings = replace(SETTINGS, kv_type=kv_type)
                self._runners[quant, kv_type] = load_runner(gguf, spec, spec.vocab_size, settings)
        self.added: dict[str, list[float]] = {quant: [] for quant in QUANTS}
        self.own: dict[str, list[float]] = {quant: [] for quant in QUANTS}

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        logits = {key: runner.forward(everything, alive) for key, runner in self._runners.items()}
        found = {key: log_probabilities(rows) for key, rows in logits.items()}
        for quant in QUANTS:
            self.added[quant] += divergences(found[quant, "fp32"], found[quant, "fp16"]).tolist()
            self.own[quant] += divergences(found["f32", "fp32"], found[quant, "fp32"]).tolist()
        return logits["f32", "fp32"][batch.sampled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=11, help="of the prompts")
    parser.add_argument("--text", type=Path, default=Path("docs/about/how-it-works.md"))
    options = parser.parse_args()
    prompts = text_prompts(options.text, np.random.default_rng(options.seed), options.prompts)
    with tempfile.TemporaryDirectory() as directory:
        compared = Compared(Path(directory))
        for number, prompt in enumerate(prompts):
            request = Request(str(number), prompt, SamplingParams(max_tokens=2, temperature=0.0))
            generate(EngineCore(compared, scheduler_config(SETTINGS)), [request])
    for quant in QUANTS:
        added, own = np.array(compared.added[quant]), np.array(compared.own[quant])
        figures = {
            "added_mean_kl": added.mean(),
            "added_median_kl": np.median(added),
            "own_mean_kl": own.mean(),
            "own_median_kl": np.median(own),
        }
        shown = {name: float(f"{value:.2e}") for name, value in figures.items()}
        case = f"built-in, {quant}, half-precision cache"
        print(
            bench_record("engine/cache_precision", case, isa="reference", seed=options.seed, tokens=added.size, **shown)
        )


if __name__ == "__main__":
    main()
