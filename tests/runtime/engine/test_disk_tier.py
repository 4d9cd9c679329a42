"""Conversations that are restored from disk produce the same tokens as without a disk tier, also after a restart or
with damaged files."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ballast.engine import tier_mover
from ballast.engine.core import BUSY, IDLE, EngineCore
from ballast.engine.engine import Engine, EngineState
from ballast.engine.limits import Limits
from ballast.engine.request import NO_SALT, Request, SamplingParams, salt_of
from ballast.engine.runner import with_changes, with_tiers
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import Cost
from ballast.model.metadata import read_spec
from ballast.model.tiers import disk_tier
from ballast.model.tiers.block_file import BlockFile
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated, generate
from devkit.long import times
from devkit.models.written import write_tiny_model
from devkit.tiers import tiers_of, until_written

BLOCK_TOKENS = 16
CACHE_TOKENS = 320
"""Fits two complete conversations."""
SMALL = EngineSettings(
    cache_lens=CACHE_TOKENS,
    max_batch_size=4,
    max_new_tokens=64,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=24,
    block_tokens=BLOCK_TOKENS,
    cpu_threads=2,
)
DISK_BYTES = 32 << 20

MakeCore = Callable[..., EngineCore]


ARCHS = ["qwen3", "glm5"]
"""In glm5, some layers store more data per token than others."""


@pytest.fixture(scope="module", params=times(ARCHS[:1], ARCHS))
def make_core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeCore:
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"), arch=request.param, mla="split", quant="q4_k")
    gguf = open_gguf(model.gguf)
    spec = read_spec(gguf, None)

    def make(folder: Path | None, costs: Sequence[Cost] = (), **changes: object) -> EngineCore:
        settings = replace(SMALL, **{"kv_disk_dir": folder, "kv_disk_bytes": DISK_BYTES if folder else None, **changes})
        runner = load_runner(gguf, spec, spec.vocab_size, settings)
        config = with_tiers(scheduler_config(settings), runner)
        return EngineCore(runner, with_changes(config, decode_costs=costs) if costs else config)

    return make


def served(core: EngineCore, requests: Sequence[Request]) -> list[Generated]:
    """Generates the replies and waits until their blocks are on disk."""
    replies = generate(core, requests)
    until_written(core)
    return replies


class Talk:
    """Conversations of several turns. Each turn repeats the text so far."""

    def __init__(self, count: int = 4, seed: int = 3) -> None:
        self._random = random.Random(seed)
        self._sent = [self._tokens(60) for _ in range(count)]

    def turn(self, core: EngineCore, *, together: bool = False) -> list[Generated]:
        """Run one turn of each conversation, one after another or concurrently."""
        requests = [self._request(sent) for sent in self._sent]
        replies = served(core, requests) if together else [served(core, [each])[0] for each in requests]
        for sent, reply in zip(self._sent, replies, strict=True):
            sent += [*reply.token_ids, *self._tokens(20)]
        return replies

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(300) for _ in range(count)]

    @staticmethod
    def _request(sent: Sequence[int]) -> Request:
        return Request("test", tuple(sent), SamplingParams(max_tokens=8, temperature=0.0))


def texts(replies: Sequence[Generated]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


def cached(replies: Sequence[Generated]) -> int:
    return sum(reply.cached_tokens for reply in replies)


def talk(core: EngineCore, num_turns: int = 4, **how: bool) -> list[Generated]:
    several = Talk()
    return [reply for _ in range(num_turns) for reply in several.turn(core, **how)]


@pytest.fixture(scope="module")
def plain(make_core: MakeCore) -> list[Generated]:
    """Replies without a tier."""
    return talk(make_core(None))


def fetched_tokens(core: EngineCore) -> int:
    return sum(tier.fetched_tokens for tier in core.stats().tiers)


@pytest.mark.parametrize("make_core", ARCHS, indirect=True, scope="module")
@pytest.mark.parametrize("together", [False, True])
def test_tokens_are_the_same_and_prefixes_are_restored(
    make_core: MakeCore, plain: list[Generated], tmp_path: Path, together: bool
) -> None:
    core = make_core(tmp_path)
    replies = talk(core, together=together)
    assert texts(replies) == texts(plain)
    assert fetched_tokens(core) > 500
    assert cached(replies) > 2 * cached(plain)
    num_fetched = fetched_tokens(core) // BLOCK_TOKENS
    assert core.tier_numbers(core.stats())[0].fetched_bytes == num_fetched * tiers_of(core)[0].block_bytes
    core.close()


def test_another_process_continues_with_the_stored_blocks(
    make_core: MakeCore, plain: list[Generated], tmp_path: Path
) -> None:
    several = Talk()
    first = make_core(tmp_path)
    replies = [reply for _ in range(2) for reply in several.turn(first)]
    first.close()
    second = make_core(tmp_path)
    later = [reply for _ in range(2) for reply in several.turn(second)]
    second.close()
    assert texts([*replies, *later]) == texts(plain)
    # For every conversation: all full blocks of the previous prompt and of the reply except its last token.
    assert all(reply.cached_tokens >= 80 for reply in later)


def test_another_process_serves_only_requests_of_the_same_salt(make_core: MakeCore, tmp_path: Path) -> None:
    prompt = tuple(range(60))

    def request(text: str | None) -> Request:
        salt = NO_SALT if text is None else salt_of(text)
        return Request("test", prompt, SamplingParams(max_tokens=8, temperature=0.0), salt=salt)

    first = make_core(tmp_path)
    before = [served(first, [request(text)])[0] for text in ("a", None, "a")]
    assert [reply.cached_tokens for reply in before] == [0, 0, 48]
    first.close()
    second = make_core(tmp_path)
    after = [served(second, [request(text)])[0] for text in ("b", "a", None)]
    assert [reply.cached_tokens for reply in after] == [0, 48, 48]
    assert fetched_tokens(second) == 96
    assert len(set(texts([*before, *after]))) == 1
    second.close()


def test_preempted_requests_are_restored_from_disk(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        Request("test", tuple(range(index, index + 70)), SamplingParams(max_tokens=60, temperature=0.0))
        for index in range(4)
    ]
    alone = [generate(make_core(None), [request])[0] for request in requests]
    core = make_core(tmp_path)
    step = core.step
    monkeypatch.setattr(core, "step", lambda: (until_written(core), step())[1])  # a small model is faster than the disk
    assert texts(generate(core, requests)) == texts(alone)
    assert core.stats().preemptions > 0
    assert fetched_tokens(core) > 0
    core.close()


def started(core: EngineCore, seq: int, sent: Sequence[int]) -> None:
    """Add a request with blocks on disk, and wait until their fetch has started."""
    core.add(seq, Request("test", tuple(sent), SamplingParams(max_tokens=4, temperature=0.0)), 0)
    assert core.step() is BUSY
    assert {line[1] for line in core.describe(10)} == {"fetching"}


def evicting(make_core: MakeCore, folder: Path, costs: Sequence[Cost] = ()) -> tuple[EngineCore, list[int]]:
    """A core whose cache has evicted a prompt that is on disk, and the prompt."""
    core = make_core(folder, costs)
    prompt = list(range(100))
    served(core, [Request("test", tuple(prompt), SamplingParams(max_tokens=4, temperature=0.0))])
    for index in range(4):
        other = tuple(range(100 + index, 200 + index))
        served(core, [Request("test", other, SamplingParams(max_tokens=4, temperature=0.0))])
    return core, prompt


def test_a_request_aborted_during_its_fetch_leaves_nothing_behind(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, prompt = evicting(make_core, tmp_path)
    goes_on = threading.Event()
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: goes_on.wait(30) and read(*given))
    started(core, 100, prompt)
    core.abort(100)
    while core.step() is BUSY:
        pass
    assert core.step() is IDLE
    assert core.stats().used_tokens == 0
    goes_on.set()
    assert generate(core, [Request("test", tuple(prompt), SamplingParams(max_tokens=4, temperature=0.0))])
    assert fetched_tokens(core) == 96, "the blocks stored by the first request are fetched for the next"
    core.check()
    core.close()


def test_other_requests_continue_during_a_fetch(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, prompt = evicting(make_core, tmp_path)
    goes_on = threading.Event()
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: goes_on.wait(30) and read(*given))
    started(core, 100, prompt)
    generate(core, [Request("test", (1, 2, 3), SamplingParams(max_tokens=20, temperature=0.0))], first_seq=200)
    assert [line[1] for line in core.describe(10)] == ["fetching"]
    goes_on.set()
    while core.step() is not IDLE:
        pass
    assert fetched_tokens(core) > 0
    core.close()


def test_a_long_prompt_is_stored_to_its_end(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    write = BlockFile.write
    monkeypatch.setattr(BlockFile, "write", lambda *given: goes_on.wait(30) and write(*given))
    core = make_core(tmp_path, cache_lens=2048)
    prompt = tuple(token % 300 for token in range(1600))
    generate(core, [Request("test", prompt, SamplingParams(max_tokens=1, temperature=0.0))])
    assert core.stats().unsent == 1
    goes_on.set()
    while core.step() is not IDLE:
        pass
    (tier,) = core.tier_numbers(core.stats())
    assert (core.stats().unsent, tier.cached_tokens, tier.dropped_tokens) == (0, 1600, 0)
    core.close()


def test_a_stopping_server_stores_blocks_of_ended_requests(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_core(tmp_path, cache_lens=2048)
    goes_on = threading.Event()
    write = BlockFile.write
    monkeypatch.setattr(BlockFile, "write", lambda *given: goes_on.wait(30) and write(*given))
    prompt = tuple(token % 300 for token in range(1600))
    generate(first, [Request("test", prompt, SamplingParams(max_tokens=1, temperature=0.0))])
    goes_on.set()
    first.close()
    second = make_core(tmp_path, cache_lens=2048)
    assert second.stats().tiers[0].cached_tokens == 1600
    second.close()


def test_a_disk_without_writes_keeps_no_thread_awake(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    write = BlockFile.write
    monkeypatch.setattr(BlockFile, "write", lambda *given: goes_on.wait(30) and write(*given))
    core = make_core(tmp_path)
    generate(core, [Request("test", tuple(range(100)), SamplingParams(max_tokens=1, temperature=0.0))])
    assert core.step() is BUSY
    monkeypatch.setattr(tier_mover, "PATIENCE_S", 0.0)
    assert core.step() is IDLE
    goes_on.set()
    core.close()


def test_a_request_that_fetches_alone_is_shown(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_core(tmp_path)
    prompt = tuple(range(100))
    served(before, [Request("test", prompt, SamplingParams(max_tokens=4, temperature=0.0))])
    before.close()
    core = make_core(tmp_path)
    goes_on = threading.Event()
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: goes_on.wait(30) and read(*given))
    engine = Engine(
        lambda report: core._runner, scheduler_config(SMALL), Limits(64, CACHE_TOKENS, SMALL.max_batch_size, 24)
    )
    engine.start()

    async def ask() -> None:
        until = time.monotonic() + 60
        while engine.state is not EngineState.READY:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        stream = engine.submit(Request("test", prompt, SamplingParams(max_tokens=4, temperature=0.0)))
        while [line["state"] for line in engine.describe()] != ["fetching"]:
            assert time.monotonic() < until, "the request is not reported as fetching"
            await asyncio.sleep(0.01)
        now = engine.snapshot()
        assert (now.fetching, now.running, now.waiting) == (1, 0, 1)
        while engine.snapshot().waited_for_tiers_s == 0:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        goes_on.set()
        async for _ in stream:
            pass

    asyncio.run(ask())
    assert engine.snapshot().tiers[0].hit_tokens > 0
    engine.stop(10)


def test_a_disk_that_is_slower_than_computing_is_not_used(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [tuple((token + 7 * index) % 300 for token in range(800)) for index in range(2)]
    requests = [Request("test", prompt, SamplingParams(max_tokens=4, temperature=0.0)) for prompt in prompts]
    first = make_core(tmp_path, cache_lens=1024)
    replies = [served(first, [request])[0] for request in requests]
    first.close()
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: (time.sleep(0.05), read(*given))[1])
    costs = [(1, 1e-5), (64, 64e-5)]  # far less than the disk needs
    second = make_core(tmp_path, costs, cache_lens=1024)
    again = [served(second, [request])[0] for request in requests]
    assert texts(again) == texts(replies)
    assert 0 < again[0].cached_tokens < 400, "the fetch must be cancelled partway"
    assert again[1].cached_tokens == 0, "not asked"
    second.close()


def test_fetches_of_other_requests_delay_no_request(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1.3 s per token at first; each step lowers it by at most 5 %.
    core, prompt = evicting(make_core, tmp_path, [(1, 1.3), (64, 83.2)])
    monkeypatch.setattr(disk_tier, "READ_AT_ONCE", 1)
    may_read = threading.Semaphore(0)
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: may_read.acquire(timeout=30) and read(*given))
    started(core, 100, prompt)
    started(core, 101, prompt)

    def is_faster() -> bool:
        core._scheduler.measured(0, 10.0)
        return core._scheduler.is_worth_fetching(101)

    assert not is_faster(), "six blocks of the first request, then six of its own"
    may_read.release(5)
    until = time.monotonic() + 30
    while not is_faster():
        assert time.monotonic() < until
        core._scheduler.measured(0, 0.0)
        assert core.step() is BUSY
    may_read.release(20)
    for seq in (100, 101):
        core.abort(seq)
    core.close()


def test_an_unresponsive_disk_is_abandoned(
    make_core: MakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core, prompt = evicting(make_core, tmp_path)
    goes_on = threading.Event()
    read = BlockFile.read
    monkeypatch.setattr(BlockFile, "read", lambda *given: goes_on.wait(30) and read(*given))
    monkeypatch.setattr(disk_tier, "LIMIT_S", 0.0)
    request = Request("test", tuple(prompt), SamplingParams(max_tokens=4, temperature=0.0))
    for _ in range(2):
        (reply,) = generate(core, [request], first_seq=300)
        assert reply.token_ids == generate(make_core(None), [request])[0].token_ids
        core.abort(300)
    assert "does not answer" in caplog.text
    goes_on.set()
    core.close()


def damage(path: Path, begin: int) -> None:
    data = np.memmap(path, np.uint8, mode="r+")
    data[begin:] ^= 0xFF
    data.flush()


FAULTS = {
    "contents are damaged": lambda path: damage(path / "contents", 0),
    "some contents are damaged": lambda path: damage(path / "contents", 700_000),
    "heads are damaged": lambda path: damage(path / "heads", 0),
    "contents are cut short": lambda path: os.truncate(path / "contents", 300_000),
    "heads are cut short": lambda path: os.truncate(path / "heads", 1000),
    "heads are another file": lambda path: (path / "heads").write_text("a letter " * 1000),
    "contents have gone": lambda path: (path / "contents").unlink(),
}


@pytest.fixture(scope="module")
def stored(make_core: MakeCore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder with a stored conversation, and its number of tokens."""
    folder = tmp_path_factory.mktemp("stored")
    core = make_core(folder)
    talk(core)
    num_tokens = core.stats().tiers[0].cached_tokens
    core.close()
    return folder, num_tokens


@pytest.mark.parametrize("fault", FAULTS)
def test_any_damage_on_disk_costs_time_but_changes_no_token(
    make_core: MakeCore,
    plain: list[Generated],
    stored: tuple[Path, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    folder, num_stored = stored
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.iterdir()
    FAULTS[fault](path)
    second = make_core(tmp_path)
    num_restored = second.stats().tiers[0].cached_tokens
    assert texts(talk(second)) == texts(plain)
    assert num_restored < num_stored or "is recomputed instead" in caplog.text, "the damage was not detected"
    second.check()
    second.close()


def test_a_full_disk_stops_only_storing(
    make_core: MakeCore, plain: list[Generated], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        replies = talk(core)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert texts(replies) == texts(plain)
    assert sum("accepts no more blocks" in record.message for record in caplog.records) == 1
    core.close()


@pytest.mark.parametrize("other", [{"block_tokens": 32}, {"activation_bytes": 2}])
def test_blocks_of_another_layout_or_machine_are_not_used(
    make_core: MakeCore, tmp_path: Path, other: dict[str, int]
) -> None:
    first = make_core(tmp_path)
    talk(first, 1)
    first.close()
    second = make_core(tmp_path, **other)
    assert second.stats().tiers[0].cached_tokens == 0
    second.close()
    assert len(list(tmp_path.iterdir())) == 1, "files of the other process are removed"


def test_a_folder_in_use_by_another_process_is_not_touched(
    make_core: MakeCore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = make_core(tmp_path)
    second = make_core(tmp_path)
    assert len(first.stats().tiers) == 1
    assert second.stats().tiers == []
    assert any(
        record.message == "kv_disk_dir is not used" and "another process is using it" in vars(record)["why"]
        for record in caplog.records
    )
    first.close()


def test_a_folder_without_room_for_a_block_is_not_used(
    make_core: MakeCore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(tmp_path, kv_disk_bytes=1000)
    assert core.stats().tiers == []
    assert "kv_disk_dir is not used" in caplog.text


def test_dropped_blocks_are_not_found_by_another_process(make_core: MakeCore, tmp_path: Path) -> None:
    first = make_core(tmp_path)
    talk(first, 1)
    (tier,) = tiers_of(first)
    known = first.stats().tiers[0].cached_tokens
    for block in range(1, tier.num_blocks + 1):
        tier.drop(block)
    first.close()
    assert known > 0
    second = make_core(tmp_path)
    assert second.stats().tiers[0].cached_tokens == 0
    second.close()
