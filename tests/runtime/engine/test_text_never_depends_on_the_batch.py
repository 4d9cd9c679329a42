"""The same request produces the same text: alone, in any batch, in any chunks, preempted, or after a prefix hit.

The rows that a kernel computes together depend on the batch, the chunks and the instruction set; the kernels depend on
the architecture. So each fast instruction set runs all batch and chunk sizes, and each architecture some of each on one
instruction set; one of each kind of attention runs on all. Because requests end one after another, a run with a large
batch includes all smaller ones. Preemption, prefix hits and threads run on one instruction set. `--long` runs the whole
product.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.text.loading import load_text
from ballast.tiny.presets import PRESETS
from ballast.weights.gguf import open_gguf
from devkit.generate import generate
from devkit.kernels.isas import FAST_ISAS, isa_params
from devkit.long import if_long, spread, times
from devkit.models.written import MakeTiny

T = TypeVar("T")

NUM_REQUESTS = times(12, 24)
NUM_REFERENCE_REQUESTS = times(6, 12)
"""For the reference kernels, which take ten times as long."""
BLOCK_TOKENS = 16
BATCHES = range(1, 9)
CHUNKS = [(1, 1), (2, 2), (7, 7), (8, 8), (33, 8), (1000, 8)]
"""(chunk_size, max_batch_size)."""


# These differ only in ways that every instruction set treats the same: Kimi K2 and GLM-4.7-Flash from V3 in sizes and
# groups, Hunyuan 3 and dots.llm1 from GLM-4.5 and Mistral Large 3 from Small 4 in sizes, Laguna M.1 from Laguna in
# windows and gates, Qwen3.5 from Qwen3-Next in tensor layouts.
IN_SIZES = ("k2", "glm47flash", "hy3", "dots1", "lagunam1", "mistrallarge3")
OTHERS = ("glm5", "qwen35", *if_long(*IN_SIZES))
LEFT_OUT = ("v2lite", "v2", "k25", "glm45air")  # these differ from others only in sizes and norms
ARCHITECTURES = tuple(arch for arch in PRESETS if arch not in ("glm5", "qwen35", *IN_SIZES, *LEFT_OUT))
KINDS = ("v3", "qwen3", "qwen3next", "glm53flash", "qwen38flashnext", "v4")
"""One architecture of each kind of attention."""
ISAS = isa_params(*FAST_ISAS, "reference")
ON_ONE_ISA = spread([arch for arch in ARCHITECTURES if arch not in KINDS], ISAS)
SUBJECTS = [
    *(
        pytest.param((arch, isa), marks=marks, id=f"{arch}-{isa}")
        for arch, isa, marks in (
            *((arch, isa.values[0], isa.marks) for arch in KINDS for isa in ISAS),
            *((*case.values, case.marks) for case in ON_ONE_ISA),
        )
    ),
    *(pytest.param((arch, kernels.usable_isas()[0]), id=arch) for arch in OTHERS),
]

# Preemption and prefix hits depend on scheduler and cache: they only change the sizes of rows, which the tests of
# batches and chunks vary on every instruction set. Threads divide the work in the same way on each.
FIRST_ISAS = [(arch, kernels.usable_isas()[0]) for arch in (*ARCHITECTURES, *OTHERS)]
of_the_scheduler = pytest.mark.parametrize(
    "subject", times(FIRST_ISAS, SUBJECTS), indirect=True, ids=times("-".join, None)
)


def some(values: Sequence[T], subject: tuple[str, str]) -> list[T]:
    """Two of `values`, or one for the reference kernels; with `--long` all. Different ones for each
    architecture on an instruction set."""
    number = times(1 if subject[1] == "reference" else 2, len(values))
    first = number * [case.values[0] for case in SUBJECTS if case.values[0][1] == subject[1]].index(subject)
    return [values[(first + index) % len(values)] for index in range(number)]


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(architecture, instruction set)."""
    arch, isa = request.param
    return arch, isa


@pytest.fixture(scope="module")
def make_core(written: MakeTiny, subject: tuple[str, str]) -> Callable[..., EngineCore]:
    arch, isa = subject
    gguf_model = open_gguf(written(arch=arch, mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf_model, None)

    def make(
        *,
        max_batch_size: int,
        chunk_size: int = 64,
        cache_lens: int = 8192,
        threads: int = 1,
        state_snapshots: int | None = None,
    ) -> EngineCore:
        settings = EngineSettings(
            cache_lens=cache_lens,
            max_batch_size=max_batch_size,
            max_new_tokens=64,
            chunk_size=chunk_size,
            prefill_chunk_size=chunk_size,
            max_queue=NUM_REQUESTS,
            block_tokens=BLOCK_TOKENS,
            state_snapshots=state_snapshots,
            cpu_threads=threads,
            cpu_isa=isa,
        )
        return EngineCore(load_runner(gguf_model, spec, spec.vocab_size, settings), scheduler_config(settings))

    return make


@pytest.fixture(scope="module")
def requests(subject: tuple[str, str]) -> list[Request]:
    """Short and long requests, greedy and sampled, with and without shared prefixes."""
    num_requests = NUM_REFERENCE_REQUESTS if subject[1] == "reference" else NUM_REQUESTS
    rng = random.Random(11)
    beginning = [rng.randrange(300) for _ in range(60)]
    mixed = []
    for index in range(num_requests):
        prompt = beginning[: rng.choice([0, 0, 30, 60])] + [rng.randrange(300) for _ in range(rng.randint(1, 50))]
        temperature = 0.0 if index % 4 else 0.8
        sampling = SamplingParams(
            max_tokens=rng.randint(1, 16),
            temperature=temperature,
            seed=index,
            logprobs=index % 3 or None,
            presence_penalty=index % 5 / 4,
            repetition_penalty=1.0 + index % 2 / 8,
            min_p=0.01 * (index % 3),
            logit_bias={index: 3.0},
        )
        mixed.append(Request(str(index), tuple(prompt), sampling))
    return mixed


@pytest.fixture(scope="module")
def alone(make_core: Callable[..., EngineCore], requests: list[Request]) -> list[tuple[int, ...]]:
    core = make_core(max_batch_size=1, chunk_size=256)
    texts = [generate(core, [request], first_seq=seq)[0].token_ids for seq, request in enumerate(requests, 1)]
    assert len(set(texts)) > len(requests) // 2, "the texts are too similar to prove anything"
    return texts


def texts_of(core: EngineCore, requests: list[Request], first_seq: int = 1) -> list[tuple[int, ...]]:
    return [result.token_ids for result in generate(core, requests, first_seq=first_seq)]


def test_text_is_the_same_in_any_batch(
    make_core: Callable[..., EngineCore],
    requests: list[Request],
    alone: list[tuple[int, ...]],
    subject: tuple[str, str],
):
    for max_batch_size in some(BATCHES, subject):
        assert texts_of(make_core(max_batch_size=max_batch_size), requests) == alone, max_batch_size


def test_text_is_the_same_in_any_chunks(
    make_core: Callable[..., EngineCore],
    requests: list[Request],
    alone: list[tuple[int, ...]],
    subject: tuple[str, str],
):
    for chunk_size, max_batch_size in some(CHUNKS, subject):
        core = make_core(max_batch_size=max_batch_size, chunk_size=chunk_size)
        assert texts_of(core, requests) == alone, (chunk_size, max_batch_size)


@of_the_scheduler
def test_text_is_the_same_after_preemption(
    make_core: Callable[..., EngineCore], requests: list[Request], alone: list[tuple[int, ...]]
):
    core = make_core(max_batch_size=8, cache_lens=144)
    assert texts_of(core, requests) == alone
    assert core.stats().preemptions > 0, "the cache was too large to force a preemption"


@of_the_scheduler
def test_text_is_the_same_after_prefix_hits(
    make_core: Callable[..., EngineCore],
    requests: list[Request],
    alone: list[tuple[int, ...]],
):
    core = make_core(max_batch_size=4, state_snapshots=92)  # room for those of all requests
    assert texts_of(core, requests) == alone
    again = generate(core, requests, first_seq=len(requests) + 1)
    assert [result.token_ids for result in again] == alone
    assert sum(result.cached_tokens for result in again) > sum(len(r.prompt_ids) for r in requests) // 2


@of_the_scheduler
def test_text_is_the_same_on_any_number_of_threads(
    make_core: Callable[..., EngineCore],
    requests: list[Request],
    alone: list[tuple[int, ...]],
):
    for threads in times([3], [2, 3]):
        assert texts_of(make_core(max_batch_size=8, threads=threads), requests) == alone


@pytest.mark.parametrize("arch", ["v3", "qwen3", *if_long("glm45", "v32")])
def test_ids_beyond_the_tokenizer_are_never_sampled(written: MakeTiny, arch: str):
    """The embedding has more rows than the tokenizer has tokens; at high temperature every id would be sampled."""
    gguf_model = open_gguf(written(arch=arch, mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf_model, None)
    num_real = load_text(None, gguf_model.metadata, "model.gguf").tokenizer.vocab_size
    assert num_real < spec.vocab_size
    settings = EngineSettings(
        cache_lens=1024, max_batch_size=4, max_new_tokens=64, chunk_size=64, prefill_chunk_size=64, max_queue=64
    )
    core = EngineCore(load_runner(gguf_model, spec, num_real, settings), scheduler_config(settings))
    hot = [
        Request(str(seed), (seed,), SamplingParams(max_tokens=64, temperature=100.0, seed=seed)) for seed in range(32)
    ]
    sampled = np.concatenate([result.token_ids for result in generate(core, hot)])
    assert sampled.max() < num_real
    assert np.unique(sampled).size > num_real // 2
