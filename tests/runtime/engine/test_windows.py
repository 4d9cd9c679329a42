"""Models with windows produce the same tokens whether layers keep all tokens or only their windows, and no more than
these are kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ballast._core import sched
from ballast.engine.core import EngineCore
from ballast.engine.runner import with_tiers
from ballast.engine.startup import loading
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.model.metadata import read_spec
from ballast.model.transformer import Transformer
from ballast.tiny.presets import MIMO_V2, PRESETS
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated, generate
from devkit.long import times
from devkit.models.written import MakeTiny, write_tiny_model
from devkit.tiers import until_written
from devkit.turns import cached, converse, greedy, random_tokens, texts

BLOCK_TOKENS = 4
CACHE_LENS = 2048
CHUNK = 32


def no_window_blocks(*_numbers: object, has_tiers: bool) -> None:
    """All layers keep all tokens."""


def least_window_blocks(
    window: int, num_blocks: int, block_tokens: int, max_batch_size: int, step_tokens: int, *, has_tiers: bool
) -> int:
    return sched.num_window_blocks(
        window=window,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_batch_size=max_batch_size,
        step_tokens=step_tokens,
        keeps_borders=False,
        has_tiers=has_tiers,
    )


MakeCore = Callable[..., EngineCore]
WINDOWED = [arch for arch, shape in PRESETS.items() if shape.heads is not None and shape.heads.window is not None]


@pytest.fixture(scope="module", params=times(WINDOWED[:2], WINDOWED))
def make_core(request: pytest.FixtureRequest, written: MakeTiny) -> MakeCore:
    gguf = open_gguf(written(arch=request.param, mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf, None)

    def make(
        blocks: Callable[..., int | None] = loading.num_window_blocks, *, folder: Path | None = None, **changes: int
    ) -> EngineCore:
        numbers = {"cache_lens": CACHE_LENS, "max_batch_size": 4, "chunk_size": CHUNK, "prefill_chunk_size": CHUNK}
        settings = EngineSettings(
            **numbers | changes, max_new_tokens=64, max_queue=64, block_tokens=BLOCK_TOKENS, kv_disk_dir=folder
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "num_window_blocks", blocks)
            runner = load_runner(gguf, spec, spec.vocab_size, settings)
        return EngineCore(runner, with_tiers(scheduler_config(settings), runner))

    return make


@pytest.fixture(scope="module")
def plain(make_core: MakeCore) -> list[Generated]:
    """Replies when all layers keep all tokens."""
    core = make_core(no_window_blocks)
    replies = converse(core)
    stats = core.stats()
    assert (stats.window_used_tokens, stats.window_cached_tokens) == (0, 0)
    assert len(set(texts(replies))) > len(replies) // 2, "the texts are too similar to prove anything"
    return replies


def test_text_is_the_same_with_windows_only(make_core: MakeCore, plain: list[Generated]) -> None:
    replies = converse(make_core())
    assert texts(replies) == texts(plain)
    assert cached(replies) > cached(plain) // 2, "window blocks at the ends of conversations are kept"


def test_text_is_the_same_with_as_few_window_blocks_as_work(make_core: MakeCore, plain: list[Generated]) -> None:
    for sizes in ({}, {"max_batch_size": 1}, {"chunk_size": 7, "prefill_chunk_size": 5}):
        replies = converse(make_core(least_window_blocks, **sizes))
        assert texts(replies) == texts(plain)
        assert 0 < cached(replies) <= cached(plain)


def test_text_is_the_same_after_preemption(make_core: MakeCore, plain: list[Generated]) -> None:
    core = make_core(least_window_blocks, cache_lens=240, chunk_size=8, prefill_chunk_size=8)
    assert texts(converse(core)) == texts(plain)
    assert core.stats().preemptions > 0, "the cache was too large to force a preemption"


def test_text_is_the_same_with_a_tier(make_core: MakeCore, plain: list[Generated], tmp_path: Path) -> None:
    """The cache is too small for the conversations, so their beginnings are read from disk."""
    sizes = {"cache_lens": 480, "max_batch_size": 2, "chunk_size": 16, "prefill_chunk_size": 16}
    core = make_core(least_window_blocks, folder=tmp_path / "kv", **sizes)
    assert core._runner.window is not None
    assert texts(converse(core)) == texts(plain)
    [tier] = core.stats().tiers
    assert tier.fetched_tokens > 0
    until_written(core)
    core.close()
    again = make_core(least_window_blocks, folder=tmp_path / "kv", **sizes)
    replies = converse(again)
    assert texts(replies) == texts(plain)
    assert replies[0].cached_tokens > 0, "blocks stored by an earlier process are found"
    again.close()


def test_a_long_context_keeps_its_windows_only(make_core: MakeCore) -> None:
    core = make_core(max_batch_size=1)
    runner = core._runner
    assert isinstance(runner, Transformer)
    assert runner.window is not None
    window, num_window_blocks = runner.window
    assert num_window_blocks * BLOCK_TOKENS < CACHE_LENS // 4
    core.add(1, greedy(random_tokens(random.Random(7), 1500), max_tokens=40), 0)
    prompt, reply = [], []
    while (result := core.step()).num_tokens:
        core.check()
        (prompt if result.num_tokens > 1 else reply).append(core.stats())
    assert max(stats.used_tokens for stats in reply) >= 1500
    assert max(stats.window_used_tokens for stats in prompt) <= window + CHUNK + 2 * BLOCK_TOKENS
    assert window - 1 <= max(stats.window_used_tokens for stats in reply) <= window + 2 * BLOCK_TOKENS


def test_a_model_whose_layers_all_have_a_window_keeps_all_tokens(tmp_path: Path) -> None:
    assert MIMO_V2.heads is not None
    heads = replace(MIMO_V2.heads, windowed_layers=tuple(range(MIMO_V2.num_layers)))
    gguf = open_gguf(write_tiny_model(tmp_path, arch="mimov2", overrides=replace(MIMO_V2, heads=heads)).gguf)
    spec, sizes = read_spec(gguf, None), {"max_batch_size": 1, "chunk_size": CHUNK, "prefill_chunk_size": CHUNK}
    settings = EngineSettings(
        **sizes, cache_lens=CACHE_LENS, max_new_tokens=64, max_queue=64, block_tokens=BLOCK_TOKENS
    )
    core = EngineCore(load_runner(gguf, spec, spec.vocab_size, settings), scheduler_config(settings))
    [reply] = generate(core, [greedy(random_tokens(random.Random(7), 1500))])
    assert len(reply.token_ids) == 12


def admitted(scheduler: sched.Scheduler, seq: int, prompt: Sequence[int]) -> int:
    """Run a request alone; return its number of cached prompt tokens."""
    scheduler.add(seq, np.array(prompt, np.int32), 6, np.array([], np.int32))
    num_cached = 0
    while (plan := scheduler.plan()).num_requests:
        num_cached = scheduler.cached_tokens(seq)
        scheduler.commit(np.full(len(plan.logits_at), 7, np.int32))
        scheduler.check()
    return num_cached


@pytest.fixture
def crowded() -> sched.Scheduler:
    """A scheduler of one slot whose pool of window blocks has room for a few borders."""
    sizes = {"num_blocks": 400, "block_tokens": 4, "max_batch_size": 1}
    least = sched.num_window_blocks(window=16, step_tokens=8, keeps_borders=False, **sizes)
    return sched.Scheduler(sched.SchedulerConfig(chunk_size=8, prefill_chunk_size=8, window=(16, least + 28), **sizes))


def test_what_requests_have_in_common_is_a_border_from_the_second_one_on(crowded: sched.Scheduler) -> None:
    rng = random.Random(3)
    common = random_tokens(rng, 102)
    # Window blocks between the borders are evicted meanwhile.
    assert [admitted(crowded, seq, common + random_tokens(rng, 160)) for seq in range(3)] == [0, 0, 100]


def test_a_reply_is_continued_at_its_end_and_a_prompt_is_found_again(crowded: sched.Scheduler) -> None:
    rng = random.Random(3)
    message = random_tokens(rng, 400)
    assert admitted(crowded, 1, message) == 0
    assert admitted(crowded, 2, random_tokens(rng, 200)) == 0
    assert admitted(crowded, 3, message) == 396
    assert admitted(crowded, 4, [*message, *[7] * 6, *random_tokens(rng, 10)]) == 404
    assert admitted(crowded, 5, message[:300]) == 256, "the border at a regular distance, after 16 windows"


def test_steps_are_measured_with_windows(make_core: MakeCore) -> None:
    runner = make_core(least_window_blocks)._runner
    assert runner.window is not None
    sizes = {"max_batch_size": 4, "chunk_size": CHUNK, "prefill_chunk_size": CHUNK}
    config = sched.SchedulerConfig(num_blocks=CACHE_LENS // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS, **sizes)
    measured = with_measured_costs(config, runner, CACHE_LENS, lambda: None)
    assert measured.window == runner.window
    assert [size for size, _ in measured.decode_costs] == [1, 2, 4, 8, 16, 32]
