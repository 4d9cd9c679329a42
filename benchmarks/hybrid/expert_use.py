"""Decode with skewed routing that drifts. The experts in GPU memory stay, were chosen by an earlier profile, or follow
use.

python benchmarks/hybrid/expert_use.py MODEL.gguf [--batch 1 4] [--steps 96] [--adapt 600] [--skew 0.8] [--drift 0.5]
                                       [--seed 0] [any option of `ballast serve`]

Routers of random models prefer no expert. Here each layer's logits are scaled to the spread of a Gumbel distribution,
and -skew · ln(rank) is added to the logit of the expert with this rank. With 0.8 and 128 experts, the 16 first ones get
58 % of the selections and the 32 first ones 75 %: published measurements of a cache of that size are 67 and 81 %. The
drift gives that fraction of the experts the ranks of others. Prints one JSON line per case and batch size:

uniform, staying / uniform, following   no preference, the worst case
static                                  skewed routing, experts as placed at the start
profile                                 after --adapt steps of skewed routing, the experts stay, and the routing drifts
following                               the same drift, after --adapt more steps

With --gpu_experts_update off, only the first and the third case are measured, with whole layers in GPU memory.
`hits`: fraction of selections whose experts are in GPU memory. `most_over_median`: the longest step divided by the
median, `slow_steps`: steps that take more than 1.5 times the median.
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
import torch
from numpy.typing import NDArray

from ballast import cli
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.load_progress import Pace
from ballast.engine.startup.loading import load_runner
from ballast.model.hybrid.experts import expert_cache
from ballast.model.hybrid.experts.expert_cache import ExpertCache
from ballast.model.hybrid.experts.routing import Choose
from ballast.model.hybrid.model import HybridModel
from ballast.model.metadata import read_spec
from ballast.plan import plan_for, planned, planned_settings
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.timing import decode_times

GUMBEL_SPREAD = 1.28
"""Standard deviation of a Gumbel distribution."""
SAMPLED = SamplingParams(max_tokens=1, temperature=1.0, top_p=1.0)
PROMPT = 16
SLOW = 1.5
MAX_MOVES = expert_cache.MAX_MOVES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--steps", type=int, default=96, help="number of timed decode steps of a case")
    parser.add_argument("--adapt", type=int, default=600, help="number of decode steps of the largest batch before it")
    parser.add_argument("--skew", type=float, default=0.8)
    parser.add_argument("--drift", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options, serve = parser.parse_known_args()
    gguf = open_gguf(options.model)
    spec = read_spec(gguf, None)
    config = cli.serve_config(["--gguf_path", str(options.model), *serve])
    plan = plan_for(config, gguf, spec)
    settings = replace(planned_settings(planned(config, plan), plan), expert_uses=None)  # nothing is known yet
    begin, pace = time.perf_counter(), Pace()

    def report(share: float) -> None:
        if pace.is_due(share, time.perf_counter() - begin):
            print(f"{share:.0%} after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)

    runner = load_runner(gguf, spec, spec.vocab_size, settings, report)
    assert isinstance(runner, HybridModel)
    about = {"options": " ".join(serve), "skew": options.skew, "drift": options.drift}
    about |= {
        "gpu_experts": runner.device_counts.gpu_experts,
        "experts": len(spec.routed_layers) * spec.routing.num_experts,
    }
    Measurement(runner, settings, options, about, spec.vocab_size).run()


class Routing:
    """Adds a preference to the routers of a model, which may change while captured steps use it."""

    def __init__(self, model: HybridModel, skew: float, rng: np.random.Generator) -> None:
        self._rng = rng
        layers, self._biases = [], []
        for layer in model.layers.weights.layers:
            if layer.routed is not None:
                device = layer.inputs[1].norm.device
                choose, bias = _preferring(layer.routed.choose, model._spec.routing.num_experts, device)
                self._biases.append(bias)
                layer = replace(layer, routed=replace(layer.routed, choose=choose))
            layers.append(layer)
        model.layers.weights = replace(model.layers.weights, layers=tuple(layers))
        num_experts = model._spec.routing.num_experts
        self._preferences = -skew * np.log(np.arange(1, num_experts + 1, dtype=np.float32))
        self._ranks = np.stack([rng.permutation(num_experts) for _ in self._biases])

    def prefer(self, *, nothing: bool = False) -> None:
        """Use the ranks from now on, or prefer nothing."""
        for bias, ranks in zip(self._biases, self._ranks, strict=True):
            values = self._preferences[ranks] * (not nothing)
            bias.copy_(torch.from_numpy(values.astype(np.float32)))

    def drift(self, share: float) -> None:
        """Exchange the ranks of this fraction of each layer's experts."""
        for ranks in self._ranks:
            moved = self._rng.permutation(len(ranks))[: round(share * len(ranks))]
            ranks[moved] = ranks[self._rng.permutation(moved)]
        self.prefer()


def _preferring(choose: Choose, num_experts: int, device: torch.device) -> tuple[Choose, torch.Tensor]:
    bias = torch.zeros(num_experts, device=device)

    def chosen(logits: torch.Tensor, token_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        spread = logits.std(-1, keepdim=True).clamp(min=1e-6)
        return choose(GUMBEL_SPREAD * (logits - logits.mean(-1, keepdim=True)) / spread + bias, token_ids)

    return chosen, bias


class Measurement:
    def __init__(
        self,
        model: HybridModel,
        settings: EngineSettings,
        options: argparse.Namespace,
        about: dict[str, object],
        vocabulary: int,
    ) -> None:
        self._model, self._settings, self._options, self._about = model, settings, options, about
        self._rng = np.random.default_rng(options.seed)
        self._vocabulary = vocabulary
        self._routing = Routing(model, options.skew, self._rng)
        if model.devices.has_graphs:
            model.capture_decode(lambda _: None)

    def run(self) -> None:
        follows = bool(list(self._caches()))
        self._stay()
        self._routing.prefer(nothing=True)
        self._measure("uniform, staying")
        if follows:
            self._follow()
            self._measure("uniform, following")
            self._stay()
        self._routing.prefer()
        self._measure("static")
        if not follows:
            return
        self._follow()
        self._adapt("adapting")
        self._stay()
        self._routing.drift(self._options.drift)
        self._measure("profile")
        self._follow()
        self._adapt("adapting to the drift")
        self._measure("following")

    def _caches(self) -> Iterator[ExpertCache]:
        for device in self._model.devices:
            if device.experts.cache is not None:
                yield device.experts.cache

    def _stay(self) -> None:
        expert_cache.MAX_MOVES = 0
        for cache in self._caches():
            cache._wanted.clear()

    def _follow(self) -> None:
        expert_cache.MAX_MOVES = MAX_MOVES

    def _counts(self) -> NDArray[np.int64]:
        devices = self._model.device_counts.devices
        numbers = [(each.expert_selections, each.expert_hits, each.moved_experts) for each in devices]
        total: NDArray[np.int64] = np.array(numbers, np.int64).sum(0)
        return total

    def _measure(self, case: str) -> None:
        for batch in self._options.batch:
            self._run(f"{case}, B={batch}", batch, self._options.steps)

    def _adapt(self, case: str) -> None:
        self._run(case, max(self._options.batch), self._options.adapt)

    def _run(self, case: str, batch: int, steps: int) -> None:
        core = EngineCore(self._model, scheduler_config(self._settings))
        params = replace(SAMPLED, max_tokens=steps + 2, min_tokens=steps + 2)
        for seq in range(1, batch + 1):
            prompt = tuple(self._rng.integers(0, self._vocabulary, PROMPT).tolist())
            core.add(seq, Request(str(seq), prompt, replace(params, seed=seq)), 0)
        before = self._counts()
        times = decode_times(core, batch)[2:]
        selections, hits, moved = self._counts() - before
        median = statistics.median(times)
        print(
            bench_record(
                "hybrid/expert_use",
                f"{self._options.model.name}: {case}",
                **self._about,
                batch=batch,
                steps=len(times),
                step_s=round(median, 6),
                mean_s=round(statistics.fmean(times), 6),
                tokens_per_s=round(batch / median, 2),
                most_over_median=round(max(times) / median, 2),
                slow_steps=sum(each > SLOW * median for each in times),
                hits=round(float(hits / max(1, selections)), 3),
                moved=int(moved),
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
