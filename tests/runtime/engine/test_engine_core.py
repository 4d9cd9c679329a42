"""The engine without threads, on a model with known text: every token must be the expected one."""

from __future__ import annotations

import random

import pytest

from ballast._core import kernels, sched
from ballast.engine.core import EngineCore
from ballast.engine.request import FinishReason, Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from devkit.generate import generate
from devkit.servers.fake_model import FakeModel, fake_next_token

VOCABULARY = 1000
BLOCK_TOKENS = 16


def make_core(*, cache_lens: int = 4096, max_batch_size: int = 8, chunk_size: int = 64) -> EngineCore:
    settings = EngineSettings(
        cache_lens=cache_lens,
        max_batch_size=max_batch_size,
        max_new_tokens=256,
        chunk_size=chunk_size,
        prefill_chunk_size=chunk_size,
        max_queue=256,
        block_tokens=BLOCK_TOKENS,
    )
    config = scheduler_config(settings)
    model = FakeModel((config.num_blocks + 1) * BLOCK_TOKENS, BLOCK_TOKENS, VOCABULARY)
    return EngineCore(model, config)


def make_request(prompt: list[int], max_tokens: int, **params: object) -> Request:
    return Request("test", tuple(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0, **params))


def expected_text(prompt: list[int], num_tokens: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(fake_next_token(tokens[-1], len(tokens) - 1, VOCABULARY))
    return tuple(tokens[len(prompt) :])


def random_requests(count: int, seed: int = 0) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(VOCABULARY) for _ in range(100)]
    return [
        (
            shared[: rng.choice([0, 40, 100])] + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 80))],
            rng.randint(1, 60),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("max_batch_size", [1, 3, 8])
@pytest.mark.parametrize("chunk_size", [8, 17, 256])
def test_every_request_gets_its_own_text_and_exactly_max_tokens(max_batch_size: int, chunk_size: int):
    cases = random_requests(40)
    core = make_core(max_batch_size=max_batch_size, chunk_size=chunk_size)
    results = generate(core, [make_request(prompt, n) for prompt, n in cases])
    for (prompt, n), result in zip(cases, results, strict=True):
        assert result.token_ids == expected_text(prompt, n)
        assert result.finish_reason is FinishReason.LENGTH
    assert core.stats().used_tokens == 0


def test_rows_are_sampled_on_the_threads_of_the_runner():
    class OnThreads(FakeModel):
        pool = kernels.ThreadPool(2)

    config = sched.SchedulerConfig(
        num_blocks=16, block_tokens=BLOCK_TOKENS, max_batch_size=4, chunk_size=64, prefill_chunk_size=64
    )
    core = EngineCore(OnThreads(17 * BLOCK_TOKENS, BLOCK_TOKENS, VOCABULARY), config)
    OnThreads.pool.start_recording()
    results = generate(core, [make_request([n], 5) for n in range(3)])
    assert len(OnThreads.pool.stop_recording()) == 5, "one loop per step for any number of rows"
    assert [result.token_ids for result in results] == [expected_text([n], 5) for n in range(3)]


def test_text_survives_preemption():
    cases = [([index + 1] * 20, 120) for index in range(6)]
    core = make_core(cache_lens=320, max_batch_size=6)
    results = generate(core, [make_request(prompt, n) for prompt, n in cases])
    assert core.stats().preemptions > 0
    for (prompt, n), result in zip(cases, results, strict=True):
        assert result.token_ids == expected_text(prompt, n)


def test_a_repeated_prompt_is_served_from_the_prefix_cache_with_the_same_text():
    prompt = list(range(100))
    core = make_core()
    (first,) = generate(core, [make_request(prompt, 20)], first_seq=1)
    (second,) = generate(core, [make_request(prompt, 20)], first_seq=2)
    assert first.cached_tokens == 0
    assert second.cached_tokens == 96
    assert second.token_ids == first.token_ids == expected_text(prompt, 20)


def test_a_stop_token_ends_the_request_in_its_own_step_and_is_delivered():
    prompt = [5, 6, 7]
    text = expected_text(prompt, 50)
    stop = text[10]
    first = text.index(stop)
    core = make_core()
    (result,) = generate(core, [make_request(prompt, 50, stop_token_ids=frozenset({stop}))])
    assert result.token_ids == text[: first + 1]
    assert result.finish_reason is FinishReason.STOP
    assert core.step().num_tokens == 0, "nothing may run after a stop"


def test_an_aborted_request_yields_no_tokens_and_holds_no_blocks():
    core = make_core()
    core.add(1, make_request([1] * 100, 50), 0)
    core.add(2, make_request([2] * 10, 50), 0)
    for _ in range(5):
        core.step()
    core.abort(1)
    seqs = {event.seq for _ in range(60) for event in core.step().events}
    assert seqs == {2}
    assert core.stats().used_tokens == 0
    core.check()


def test_a_request_is_reported_admitted_once_in_the_step_that_starts_it():
    core = make_core(max_batch_size=1)
    core.add(1, make_request([1], 2), 0)
    core.add(2, make_request([2], 2), 0)
    admitted = [core.step().admitted for _ in range(4)]
    assert admitted == [((1, 0),), (), ((2, 0),), ()]


def test_step_kinds_distinguish_prefill_decode_and_mixed():
    core = make_core(chunk_size=8)
    core.add(1, make_request([1] * 8, 10), 0)
    assert core.step().kind == "prefill"
    assert core.step().kind == "decode"
    core.add(2, make_request([2] * 8, 10), 0)
    assert core.step().kind == "mixed"


def test_a_request_larger_than_the_cache_is_rejected():
    core = make_core(cache_lens=64)
    with pytest.raises(ValueError, match="64"):
        core.add(1, make_request([1] * 60, 40), 0)
    assert core.step().num_tokens == 0
