"""Recurrent states are restored from host memory and disk together with the blocks of their tokens, also in another
process, and the text is the same as without tiers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ballast.engine import engine as engine_module
from ballast.engine.core import IDLE, EngineCore
from ballast.engine.engine import Engine, EngineState
from ballast.engine.limits import Limits
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_tiers
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.model.tiers.state_file import HEAD
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated, generate
from devkit.long import if_long
from devkit.models.written import MakeTiny
from devkit.tiers import tiers_of, until_written

BLOCK_TOKENS = 16
SMALL = EngineSettings(
    cache_lens=320,
    max_batch_size=2,
    max_new_tokens=64,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=24,
    block_tokens=BLOCK_TOKENS,
    cpu_threads=2,
)
MIB = 1 << 20

MakeCore = Callable[..., EngineCore]


@pytest.fixture(scope="module", params=["kimilinear", "glm53flash", "qwen38flashnext", "v4", *if_long("qwen3next")])
def make_core(written: MakeTiny, request: pytest.FixtureRequest) -> MakeCore:
    gguf = open_gguf(written(arch=request.param, mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf, None)

    def make(folder: Path | None, **changes: object) -> EngineCore:
        settings = replace(SMALL, **{"kv_disk_dir": folder, "kv_disk_bytes": 256 * MIB if folder else None, **changes})
        runner = load_runner(gguf, spec, spec.vocab_size, settings)
        return EngineCore(runner, with_tiers(scheduler_config(settings), runner))

    return make


def rest(core: EngineCore) -> None:
    """Idle for a while, so that the states of all conversations are stored."""
    core.rest()
    settle(core)


def settle(core: EngineCore) -> None:
    """Let the engine see all that was sent to tiers, with nothing to compute."""
    while core.step() is not IDLE:
        until_written(core)


class Talk:
    """Conversations of several turns. Each turn repeats the text so far. The cache holds two of the four."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(3)
        self._sent = [self._tokens(60) for _ in range(4)]

    def turn(self, core: EngineCore, *, rests: bool = True) -> list[Generated]:
        replies = []
        for sent in self._sent:
            sampling = SamplingParams(max_tokens=8, temperature=0.0)
            (reply,) = generate(core, [Request("test", tuple(sent), sampling, snapshots_at=(len(sent) - 5,))])
            if rests:
                rest(core)
            sent += [*reply.token_ids, *self._tokens(20)]
            replies.append(reply)
        return replies

    def _tokens(self, count: int) -> list[int]:
        return self._random.integers(300, size=count).tolist()


def texts(replies: Sequence[Generated]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


def cached(replies: Sequence[Generated]) -> int:
    return sum(reply.cached_tokens for reply in replies)


def fetched(core: EngineCore) -> list[int]:
    return [tier.fetched_tokens for tier in core.stats().tiers]


@pytest.fixture(scope="module")
def plain(make_core: MakeCore) -> list[Generated]:
    """Three turns without a tier."""
    core, talk = make_core(None), Talk()
    return [reply for _ in range(3) for reply in talk.turn(core, rests=False)]


def test_states_at_rest_are_restored_from_disk(make_core: MakeCore, plain: list[Generated], tmp_path: Path) -> None:
    core, talk = make_core(tmp_path), Talk()
    replies = [reply for _ in range(3) for reply in talk.turn(core)]
    assert texts(replies) == texts(plain)
    assert all(reply.cached_tokens >= 48 for reply in replies[4:])
    assert cached(replies) > cached(plain)
    (numbers,) = core.tier_numbers(core.stats())
    (tier,) = tiers_of(core)
    num_fetches = (numbers.fetched_bytes - numbers.hit_tokens // BLOCK_TOKENS * tier.block_bytes) / tier.state_bytes
    assert num_fetches == round(num_fetches) > 0, "each fetch includes a state"
    core.close()


def test_states_are_not_stored_while_conversations_continue(make_core: MakeCore, tmp_path: Path) -> None:
    core, talk = make_core(tmp_path), Talk()
    for _ in range(2):
        talk.turn(core, rests=False)
        settle(core)
    (numbers,), (tier,) = core.tier_numbers(core.stats()), tiers_of(core)
    assert numbers.stored_bytes % tier.block_bytes == 0
    before = numbers.stored_bytes
    rest(core)
    (numbers,) = core.tier_numbers(core.stats())
    assert (numbers.stored_bytes - before) % tier.state_bytes == 0
    assert numbers.stored_bytes > before
    core.close()


def test_another_process_continues_from_the_stored_states(
    make_core: MakeCore, plain: list[Generated], tmp_path: Path
) -> None:
    talk, first = Talk(), make_core(tmp_path)
    replies = talk.turn(first, rests=False)
    first.close()  # stores states that are not stored yet
    second = make_core(tmp_path)
    later = [reply for _ in range(2) for reply in talk.turn(second)]
    assert texts([*replies, *later]) == texts(plain)
    assert fetched(second)[0] >= 3 * 48
    second.close()


@pytest.mark.parametrize("what", ["content", "heads", "other block"])
def test_damaged_states_are_computed_again(
    make_core: MakeCore, plain: list[Generated], tmp_path: Path, what: str
) -> None:
    talk, first = Talk(), make_core(tmp_path)
    replies = talk.turn(first)
    first.close()
    (folder,) = tmp_path.iterdir()
    heads = np.fromfile(folder / "state-heads", HEAD)
    assert np.count_nonzero(heads["write"]) >= 4
    if what == "content":
        content = np.fromfile(folder / "states", np.uint8)
        content[:: tiers_of(first)[0].state_bytes // 8] += 1
        content.tofile(folder / "states")
    elif what == "heads":
        heads["content_sum"] ^= 1
        heads.tofile(folder / "state-heads")
    else:
        heads[1:] = np.roll(heads[1:], 1)  # intact, but each has another state's contents
        heads.tofile(folder / "state-heads")
    second = make_core(tmp_path)
    later = [reply for _ in range(2) for reply in talk.turn(second)]
    assert texts([*replies, *later]) == texts(plain)
    second.close()


def test_the_block_of_a_damaged_state_remains(make_core: MakeCore, plain: list[Generated], tmp_path: Path) -> None:
    """The next process reads neither the state again nor writes the block again."""
    talk, first = Talk(), make_core(tmp_path)
    replies = talk.turn(first)
    first.close()
    (folder,) = tmp_path.iterdir()
    content = np.fromfile(folder / "states", np.uint8)
    content[:: tiers_of(first)[0].state_bytes // 8] += 1
    content.tofile(folder / "states")
    second = make_core(tmp_path)
    (before,) = second.stats().tiers
    replies += talk.turn(second, rests=False)
    settle(second)
    (after,), (tier,) = second.stats().tiers, tiers_of(second)
    (moved,) = second.tier_numbers(second.stats())
    assert after.fetched_tokens == 0
    num_new = (after.cached_tokens - before.cached_tokens) // BLOCK_TOKENS
    assert moved.stored_bytes == num_new * tier.block_bytes, "only new blocks are written"
    assert num_new >= 4
    assert before.states - after.states >= 4, "one of each conversation"
    second.close()
    third = make_core(tmp_path)
    (restored,) = third.stats().tiers
    assert restored.cached_tokens >= after.cached_tokens
    replies += talk.turn(third)
    assert fetched(third)[0] >= 3 * 48
    assert texts(replies) == texts(plain)
    third.close()


def test_host_memory_takes_every_snapshot(make_core: MakeCore, plain: list[Generated], tmp_path: Path) -> None:
    core, talk = make_core(tmp_path, kv_host_bytes=256 * MIB), Talk()
    replies = [reply for _ in range(3) for reply in talk.turn(core, rests=False)]
    assert texts(replies) == texts(plain)
    from_host, from_disk = fetched(core)
    assert from_host > 0
    assert from_disk == 0, "host memory is faster, so it is used first"
    assert all(reply.cached_tokens >= 48 for reply in replies[4:])
    core.close()


def test_a_folder_that_is_too_small_for_a_state_is_not_used(
    make_core: MakeCore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(tmp_path, kv_disk_bytes=MIB // 16)
    assert not tiers_of(core)
    (record,) = (each for each in caplog.records if each.message == "kv_disk_dir is not used")
    assert "is too small for one recurrent state of" in vars(record)["why"]


def test_an_idle_engine_stores_the_states_of_conversations(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "IDLE_WAKE_S", 0.05)
    core = make_core(tmp_path)
    limits = Limits(64, SMALL.cache_lens, SMALL.max_batch_size, 24)
    engine = Engine(lambda report: core._runner, scheduler_config(SMALL), limits)
    engine.start()

    async def ask() -> None:
        until = time.monotonic() + 60
        while engine.state is not EngineState.READY:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        async for _ in engine.submit(Request("test", tuple(range(60)), SamplingParams(max_tokens=4, temperature=0.0))):
            pass
        while engine.snapshot().tiers[0].states == 0:
            assert time.monotonic() < until, "nothing is stored"
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    engine.stop(10)
