"""Effect on a model's distributions of the latent cache's type, of attention in that type, and of products in half
precision. Prints one JSON line per member of the family and way of rounding, over all quantised types.

Runs the hybrid's code on the CPU in float32, except for the cache and, with "attention", what flashinfer's kernels
round to the cache's type: scaled queries, weights of values, results. For every token of some prompts, it reports the
divergence (KL, in nats) from the distribution of the C++ model, which does not round, with its standard error over
prompts; how often the best token is the same; and how many choices of experts differ. "led" in the records compares
with the hybrid's code in float32 that is forced to make the same choices if scores are nearly equal, so that only
rounding is left. Both factors of every product are rounded for the built-in model with float32 weights, in all layers
and experts, as for the prompts of a GPU.

Random models get random tokens. The built-in model gets a text that it was not trained on.

python benchmarks/hybrid/cache_precision.py [--prompts 4] [--seed 11] [--text docs/about/how-it-works.md]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.hybrid.attention.attention import PlainAttention
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.backends import selection
from ballast.model.hybrid.layers.latent_attention import LatentAttention
from ballast.model.hybrid.linear import FloatLinear, Linear
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.steps.step import Step
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.tiny import write_built_in, write_tiny_model
from ballast.tiny.quant_mix import QUANTS
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.generate import generate
from devkit.models.cpu_backend import CpuBackend
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.oracles import precision_prompts
from devkit.oracles.divergence import divergences, log_probabilities
from devkit.oracles.forced_routing import ForcedRouting
from devkit.oracles.precision_prompts import text_prompts

SETTINGS = precision_prompts.SETTINGS
LAYOUTS = {"v2lite": "joint", "v2": "split", "v3": "split", "k2": "joint"}
TRAINED_QUANTS = ("q8_0", "q6_k", "q4_k")
ROUNDINGS = {
    "float32 cache": (torch.float32, False),
    "half-precision cache": (torch.float16, False),
    "half-precision cache and attention": (torch.float16, True),
    "bfloat16 cache": (torch.bfloat16, False),
    "8-bit cache": (torch.float8_e4m3fn, False),
}


class RoundedAttention:
    """Attention that rounds the values that flashinfer's kernels round."""

    def __init__(self, sizes: LatentSizes, dtype: torch.dtype) -> None:
        self._sizes = sizes
        self._dtype = dtype

    def prepare(self, step: Step) -> None:
        """There is nothing to do."""

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`; all steps belong to one request."""
        requests, sizes = step.requests, self._sizes
        slots = requests.blocks[0][:, None] * sizes.block_tokens + torch.arange(sizes.block_tokens)
        keys = cache[slots.flatten()[: requests.host_lens[0]]].float()
        scores = self._rounded(query * sizes.scale) @ keys.T
        hidden = torch.arange(len(keys)) > step.positions[:, None]
        scores = scores.masked_fill(hidden[:, None, :], -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        total = weights.sum(-1, keepdim=True)
        return self._rounded(self._rounded(weights) @ keys[:, : sizes.rank] / total)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._dtype).float()


def load(file: Path, dtype: torch.dtype, *, rounds_attention: bool = False) -> HybridModel:
    hybrid = load_hybrid(file, torch.device("cpu"), SETTINGS, kv_dtype=dtype)
    if rounds_attention:
        for layer in (hybrid.devices[0].attention, hybrid.devices[0].prefill_attention):
            [kind] = layer.kinds
            assert isinstance(kind, LatentAttention)
            plain = kind.attend
            assert isinstance(plain, PlainAttention)
            assert isinstance(plain._sizes, LatentSizes)
            kind.attend = RoundedAttention(plain._sizes, dtype)
    return hybrid


@dataclass
class Compared:
    """Counts over every token so far."""

    divergences: list[float]
    same_top: list[bool]

    def add(self, theirs: np.ndarray, ours: np.ndarray) -> None:
        p, q = log_probabilities(theirs), log_probabilities(ours)
        self.divergences += divergences(p, q).tolist()
        self.same_top += (p.argmax(1) == q.argmax(1)).tolist()


@dataclass
class Measured:
    """Results of one file."""

    prompt_means: list[float]
    """Mean divergence over each prompt's tokens."""
    free: Compared
    forced: Compared
    choices: tuple[int, int, int]
    """Number of choices, of differing choices, and of rejected choices."""


class Side(Runner):
    """Runs every step in the C++ model, in one that rounds, and in one with forced routing."""

    def __init__(self, plain: Runner, rounded: HybridModel, forced_runner: HybridModel) -> None:
        self._runners = rounded, forced_runner, plain
        self.routing = ForcedRouting(rounded, forced_runner, SETTINGS.prefill_chunk_size)
        self.free, self.forced = Compared([], []), Compared([], [])

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        ours, forced, theirs = (runner.forward(everything, alive) for runner in self._runners)
        self.free.add(theirs, ours)
        self.forced.add(forced, ours)
        return theirs[batch.sampled]


def half(x: torch.Tensor) -> torch.Tensor:
    """Rounds activations as a GPU's kernels do (`half_kernels.py`), and small weights a little more than they do."""
    return (x / 4).clamp(-65504, 65504).half().float() * 4


class HalfLinear(FloatLinear):
    """Rounds both factors."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(half(weight))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(half(x))


class HalfProducts(CpuBackend):
    """Multiplies in half precision, experts included."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, partial(FloatExperts, rounded=half))

    def make_linear(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        """See `Backend`."""
        return HalfLinear(torch.from_numpy(kernels.unpack(matrix)))


def rounding_products(file: Path) -> Side:
    """Every expert is in the memory of the simulated GPU."""
    gguf_model = open_gguf(file)
    spec = read_spec(gguf_model, None)
    plain = load_runner(gguf_model, spec, spec.vocab_size, replace(SETTINGS, cpu_isa="reference"))
    everything = (tuple(range(spec.routing.num_experts)),) * len(spec.routed_layers)
    before, selection.MAKERS["cpu"] = selection.MAKERS["cpu"], HalfProducts
    try:
        rounded = load_hybrid(file, torch.device("cpu"), SETTINGS, kv_dtype=torch.float32, gpu_experts=everything)
    finally:
        selection.MAKERS["cpu"] = before
    return Side(plain, rounded, load(file, torch.float32))


def sides(file: Path) -> Iterator[tuple[str, Side]]:
    gguf_model = open_gguf(file)
    spec = read_spec(gguf_model, None)
    for rounding, (dtype, rounds_attention) in ROUNDINGS.items():
        plain = load_runner(gguf_model, spec, spec.vocab_size, replace(SETTINGS, cpu_isa="reference"))
        rounded = load(file, dtype, rounds_attention=rounds_attention)
        yield rounding, Side(plain, rounded, load(file, torch.float32))


def models(directory: Path) -> Iterator[tuple[str, list[Path]]]:
    for arch, mla in LAYOUTS.items():
        yield (
            f"random {arch}",
            [write_tiny_model(directory / arch / quant, arch=arch, mla=mla, quant=quant).gguf for quant in QUANTS],
        )
    yield "built-in", [write_built_in(directory / "built-in" / quant, quant=quant).gguf for quant in TRAINED_QUANTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=11, help="of the prompts")
    parser.add_argument("--text", type=Path, default=Path("docs/about/how-it-works.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    prompts_of = {
        True: text_prompts(options.text, rng, 4 * options.prompts),
        False: [tuple(rng.integers(0, 300, precision_prompts.PROMPT_TOKENS).tolist()) for _ in range(options.prompts)],
    }
    with tempfile.TemporaryDirectory() as directory:
        for name, files in models(Path(directory)):
            prompts = prompts_of[name == "built-in"]
            found: dict[str, list[Measured]] = {rounding: [] for rounding in ROUNDINGS}
            for file in files:
                for rounding, side in sides(file):
                    found[rounding].append(measure(side, prompts))
            for rounding, measured in found.items():
                print(record(f"{name}, {rounding}", measured, options.seed), flush=True)
        floats = write_built_in(Path(directory) / "floats", quant="f32").gguf
        products = measure(rounding_products(floats), prompts_of[True])
        print(record("built-in, half-precision products", [products], options.seed), flush=True)


def measure(side: Side, prompts: list[tuple[int, ...]]) -> Measured:
    means = []
    for index, prompt in enumerate(prompts):
        before = len(side.free.divergences)
        request = Request(str(index), prompt, SamplingParams(max_tokens=2, temperature=0.0))
        generate(EngineCore(side, scheduler_config(SETTINGS)), [request])
        means.append(float(np.mean(side.free.divergences[before:])))
    routing = side.routing
    choices = routing.num_choices, routing.num_differing, routing.num_refused
    return Measured(means, side.free, side.forced, choices)


def record(case: str, files: list[Measured], seed: int) -> str:
    means = np.array([file.prompt_means for file in files])
    free, forced = [file.free for file in files], [file.forced for file in files]
    divergences = np.concatenate([compared.divergences for compared in free])
    choices, differing, refused = np.sum([file.choices for file in files], 0)
    return bench_record(
        "hybrid/cache_precision",
        case,
        seed=seed,
        files=len(files),
        tokens=divergences.size,
        mean_kl=float(f"{means.mean():.2e}"),
        standard_error=float(f"{means.std(ddof=1) / np.sqrt(means.size):.1e}"),
        median_kl=float(f"{np.median(divergences):.1e}"),
        worst_file_mean_kl=float(f"{means.mean(1).max():.1e}"),
        same_top=round(float(np.mean([compared.same_top for compared in free])), 4),
        led_mean_kl=float(f"{np.mean([compared.divergences for compared in forced]):.1e}"),
        led_same_top=round(float(np.mean([compared.same_top for compared in forced])), 4),
        choices_differing=round(float(differing / choices), 5),
        choices_refused=int(refused),
    )


if __name__ == "__main__":
    main()
