"""After a failed step, its blocks are not shared with other requests, and nothing is held."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.errors import RequestError
from ballast.model.batch import Batch
from ballast.model.runner import Runner
from devkit.generate import generate
from devkit.servers.fake_model import FakeModel

VOCABULARY = 200
BLOCK_TOKENS = 16
PROMPT = tuple(range(100))


class Spoilt(Runner):
    """The fake model, with NaN logits after any of the tokens in `bad`."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self.bad: set[int] = set()

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        logits = self._model.forward(batch, alive)
        logits[np.isin(batch.token_ids[batch.sampled], list(self.bad))] = math.nan
        return logits


class GivesUp:
    """A grammar that allows all tokens for a while, and then fails."""

    def __init__(self, after: int) -> None:
        self._left = after

    def start(self) -> GivesUp:
        return self

    def allowed(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RequestError("too complex", param="response_format")

    def accept(self, token_id: int) -> None:
        pass


def make_core(chunk_size: int = 128) -> tuple[EngineCore, Spoilt]:
    settings = EngineSettings(
        cache_lens=1024,
        max_batch_size=4,
        max_new_tokens=64,
        chunk_size=chunk_size,
        prefill_chunk_size=chunk_size,
        max_queue=8,
        block_tokens=BLOCK_TOKENS,
    )
    config = scheduler_config(settings)
    model = Spoilt(FakeModel((config.num_blocks + 1) * BLOCK_TOKENS, BLOCK_TOKENS, VOCABULARY))
    return EngineCore(model, config), model


def make_request(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 4, **sampling: object) -> Request:
    return Request("test", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling))


def fail(core: EngineCore, request: Request, seq: int = 1) -> Exception:
    """Run the request until it fails; return the exception."""
    core.add(seq, request, 0)
    while True:
        result = core.step()
        assert result.num_tokens > 0
        core.check()
        if result.failed:
            ((failed, error),) = result.failed
            assert failed == seq
            return error


@pytest.mark.parametrize("chunk_size", [128, 64, 16])
def test_blocks_of_a_prompt_with_nans_are_not_shared(chunk_size: int):
    core, model = make_core(chunk_size)
    model.bad = {PROMPT[-1]}
    assert isinstance(fail(core, make_request()), FloatingPointError)
    assert core.stats().cached_tokens == 0
    model.bad = set()
    (again,) = generate(core, [make_request()], first_seq=2)
    assert again.cached_tokens == 0


def test_blocks_of_a_reply_that_fails_midway_are_not_shared():
    core, model = make_core()
    (whole,) = generate(core, [make_request(max_tokens=60)], first_seq=1)
    core, model = make_core()
    model.bad = {whole.token_ids[40]}
    fail(core, make_request(max_tokens=60))
    assert (core.stats().cached_tokens, core.stats().used_tokens) == (0, 0)
    model.bad = set()
    (again,) = generate(core, [make_request((*PROMPT, *whole.token_ids[:40]))], first_seq=2)
    assert again.cached_tokens == 0


def test_a_prefix_that_led_to_nans_is_recomputed_and_cached_again():
    """The prefix may be the cause, so it must not fail every later request that finds it in the cache."""
    core, model = make_core()
    generate(core, [make_request()], first_seq=1)
    model.bad = {150}
    fail(core, make_request((*PROMPT, 150)), seq=2)
    model.bad = set()
    again, and_again = (generate(core, [make_request()], first_seq=seq)[0] for seq in (3, 4))
    assert (again.cached_tokens, and_again.cached_tokens) == (0, 96)
    assert core.stats().used_tokens == 0


def test_other_requests_with_the_prefix_continue_unchanged():
    core, model = make_core()
    (alone,) = generate(make_core()[0], [make_request(max_tokens=40)])
    core.add(1, make_request(max_tokens=40), 0)
    core.step()
    model.bad = {150}
    core.add(2, make_request((*PROMPT, 150)), 0)
    text, failed = [], []
    while core.stats().running:
        result = core.step()
        core.check()
        text += [event.token_id for event in result.events if event.seq == 1]
        failed += [seq for seq, _ in result.failed]
    assert failed == [2]
    assert text == list(alone.token_ids[1:])
    assert core.stats().used_tokens == 0
    (again,) = generate(core, [make_request()], first_seq=3)
    assert again.cached_tokens == 0


def test_a_failed_grammar_publishes_nothing_and_keeps_published_blocks():
    core, _ = make_core()
    assert isinstance(fail(core, make_request(constraint=GivesUp(after=0))), RequestError)
    assert core.stats().cached_tokens == 0
    (first,) = generate(core, [make_request()], first_seq=2)
    fail(core, make_request((*PROMPT, 7, 8), constraint=GivesUp(after=0)), seq=3)
    (again,) = generate(core, [make_request()], first_seq=4)
    assert (first.cached_tokens, again.cached_tokens) == (0, 96)


def test_a_failure_caused_by_the_request_keeps_a_shared_prefix_cached():
    """The request's bias, not the model, made the numbers infinite."""
    core, _ = make_core()
    generate(core, [make_request()], first_seq=1)
    fail(core, make_request(logit_bias=dict.fromkeys(range(VOCABULARY), -math.inf)), seq=2)
    (again,) = generate(core, [make_request()], first_seq=3)
    assert again.cached_tokens == 96


def test_a_sequence_that_fails_with_its_last_token_ends_once():
    core, model = make_core()
    model.bad = {PROMPT[-1]}
    core.add(1, make_request(max_tokens=1, stop_token_ids=frozenset({0})), 0)
    result = core.step()
    assert result.events == ()
    assert [seq for seq, _ in result.failed] == [1]
    assert core.step().num_tokens == 0


def test_nan_scores_of_a_prompt_fail_the_request():
    core, model = make_core(chunk_size=32)
    model.bad = {PROMPT[20]}
    request = Request("test", PROMPT, SamplingParams(max_tokens=1, logprobs=0), prompt_logprobs=0)
    core.add(1, request, 0)
    core.add(2, make_request((150, 151)), 0)
    result = core.step()
    assert [seq for seq, _ in result.failed] == [1]
    assert result.prefilled == ()
    while core.stats().running:
        assert not core.step().failed
    assert core.stats().used_tokens == 0
