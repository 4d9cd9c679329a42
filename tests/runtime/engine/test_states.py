"""Models with recurrent state produce the same tokens from any snapshot, and keep snapshots where later requests
begin."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ballast._core import sched
from ballast.engine.core import EngineCore
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.model.kv_pool import GPU_SNAPSHOTS, HOST_SNAPSHOTS
from ballast.model.metadata import read_spec
from ballast.model.transformer import Transformer
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated
from devkit.long import times
from devkit.models.written import MakeTiny
from devkit.turns import cached, converse, greedy, random_tokens, texts

BLOCK_TOKENS = 4
ENTRY_BLOCK_TOKENS = 16
"""A model with compressed entries, each in one block."""
CACHE_LENS = 2048
CHUNK = 32

MakeCore = Callable[..., EngineCore]


@pytest.fixture(scope="module", params=["qwen3next", "qwen35", "kimilinear", "glm53flash", "qwen38flashnext", "v4"])
def make_core(written: MakeTiny, request: pytest.FixtureRequest) -> MakeCore:
    gguf = open_gguf(written(arch=request.param, mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf, None)

    def make(more_slots: int | None = None, *, prefix_cache: bool = True, **changes: int) -> EngineCore:
        """`more_slots`: number of slots in addition to the minimum; None: the default number."""
        numbers = {"cache_lens": CACHE_LENS, "max_batch_size": 4, "chunk_size": CHUNK, "prefill_chunk_size": CHUNK}
        settings = EngineSettings(
            **numbers | changes,
            max_new_tokens=64,
            max_queue=64,
            block_tokens=BLOCK_TOKENS if spec.architecture.attention != "compressed" else ENTRY_BLOCK_TOKENS,
            state_snapshots=more_slots,
        )
        runner = load_runner(gguf, spec, spec.vocab_size, settings)
        return EngineCore(runner, with_changes(scheduler_config(settings), prefix_cache=prefix_cache))

    return make


@pytest.fixture(scope="module")
def plain(make_core: MakeCore) -> list[Generated]:
    """Without a prefix cache, every token is computed for each request."""
    replies = converse(make_core(prefix_cache=False))
    assert cached(replies) == 0
    assert len(set(texts(replies))) > len(replies) // 2, "the texts are too similar to prove anything"
    return replies


def test_text_is_the_same_from_snapshots(make_core: MakeCore, plain: list[Generated]) -> None:
    core = make_core(40)
    replies = converse(core)
    assert texts(replies) == texts(plain)
    assert cached(replies[6:]) > 12 * 90, "turns must continue from the end of the previous turn"
    assert core.stats().snapshots > 12


def test_text_is_the_same_with_any_number_of_slots(make_core: MakeCore, plain: list[Generated]) -> None:
    found = []
    for more_slots in times((0, 4), (0, 1, 4, 12)):
        replies = converse(make_core(more_slots))
        assert texts(replies) == texts(plain)
        found.append(cached(replies))
    assert found[0] < found[-1]


def test_text_is_the_same_in_any_steps(make_core: MakeCore, plain: list[Generated]) -> None:
    for sizes in ({"max_batch_size": 1}, {"chunk_size": 7, "prefill_chunk_size": 5}, {"prefill_chunk_size": 300}):
        replies = converse(make_core(**sizes))
        assert texts(replies) == texts(plain)
        assert cached(replies) > 0


def test_text_is_the_same_after_preemption(make_core: MakeCore, plain: list[Generated]) -> None:
    cores = [make_core(cache_lens=size, chunk_size=8, prefill_chunk_size=8) for size in (240, 272)]
    for core in cores:
        assert texts(converse(core)) == texts(plain)
    assert any(core.stats().preemptions for core in cores), "the caches were too large to force a preemption"


def test_aborted_requests_leave_no_slot_behind(make_core: MakeCore, plain: list[Generated]) -> None:
    core = make_core(4)
    rng = random.Random(9)
    for seq in range(1, 30):
        core.add(seq, greedy(random_tokens(rng, rng.randrange(1, 120))), 0)
        for _ in range(rng.randrange(4)):
            core.step()
        core.abort(seq)
        core.check()
    while core.step().num_tokens:
        core.check()
    assert texts(converse(core)) == texts(plain)


def admitted(scheduler: sched.Scheduler, seq: int, prompt: Sequence[int]) -> int:
    """Run a request alone; return its number of cached prompt tokens."""
    scheduler.add(seq, np.array(prompt, np.int32), 6, np.array([], np.int32))
    num_cached = 0
    while (plan := scheduler.plan()).num_requests:
        num_cached = scheduler.cached_tokens(seq)
        scheduler.commit(np.full(len(plan.logits_at), 7, np.int32))
        scheduler.check()
    return num_cached


def test_prompts_replies_and_common_prefixes_are_found_again() -> None:
    sizes = {"num_blocks": 8000, "block_tokens": 4, "max_batch_size": 1, "chunk_size": 64, "prefill_chunk_size": 512}
    scheduler = sched.Scheduler(sched.SchedulerConfig(**sizes, state_slots=40))
    rng = random.Random(3)
    said, common = random_tokens(rng, 403), random_tokens(rng, 102)
    assert admitted(scheduler, 1, said) == 0
    assert admitted(scheduler, 2, said) == 400
    assert admitted(scheduler, 3, [*said, *[7] * 6, *random_tokens(rng, 10)]) == 408, (
        "all tokens of the reply except the last"
    )
    assert [admitted(scheduler, seq, common + random_tokens(rng, 160)) for seq in (4, 5, 6)] == [0, 0, 100]
    long = random_tokens(rng, 20_000)
    assert admitted(scheduler, 7, long) == 0
    assert admitted(scheduler, 8, long[:18_000]) == 16_384, "the grid of long prompts"


def test_a_request_between_turns_does_not_lose_a_conversation_of_one_user() -> None:
    sizes = {"num_blocks": 2000, "block_tokens": 4, "max_batch_size": 1, "chunk_size": 64, "prefill_chunk_size": 512}
    slots = sched.num_state_slots(capacity_tokens=8000, max_batch_size=1, least_snapshots=GPU_SNAPSHOTS)
    scheduler = sched.Scheduler(sched.SchedulerConfig(**sizes, state_slots=slots))
    rng = random.Random(5)
    said = random_tokens(rng, 400)
    assert admitted(scheduler, 1, said) == 0
    for turn in range(2, 10, 2):
        assert admitted(scheduler, turn, random_tokens(rng, 60)) == 0
        num_known = (len(said) + 5) // 4 * 4
        said = [*said, *[7] * 6, *random_tokens(rng, 21)]
        assert admitted(scheduler, turn + 1, said) == num_known


def test_steps_are_measured_with_states(make_core: MakeCore) -> None:
    runner = make_core()._runner
    assert isinstance(runner, Transformer)
    assert runner.state_slots == 2 * 4 + HOST_SNAPSHOTS
    sizes = {"max_batch_size": 4, "chunk_size": CHUNK, "prefill_chunk_size": CHUNK}
    config = sched.SchedulerConfig(num_blocks=CACHE_LENS // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS, **sizes)
    measured = with_measured_costs(config, runner, CACHE_LENS, lambda: None)
    assert measured.state_slots == runner.state_slots
    assert [size for size, _ in measured.decode_costs] == [1, 2, 4, 8, 16, 32]
