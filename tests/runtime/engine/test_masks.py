"""Grammars in the engine: masks come in time, failures affect only their request, and text depends on nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.engine.build import EngineSettings, scheduler_config
from ballast.engine.core import EngineCore
from ballast.engine.masks import MaskWorker
from ballast.engine.request import FinishReason, Request, SamplingParams
from ballast.engine.sequence import Sequence
from ballast.errors import RequestError
from support.generate import generate
from support.servers.fake_model import FakeModel

VOCABULARY = 100
EOS = 99
BLOCK_TOKENS = 16


@dataclass
class Countdown:
    """A grammar in which each token is lower than the last, and which ends after a token below 10."""

    fails_below: int = -1
    threads: set[str] = field(default_factory=set)

    def start(self) -> CountdownState:
        return CountdownState(self)


@dataclass
class CountdownState:
    grammar: Countdown
    last: int = 90

    def allowed(self) -> NDArray[np.bool_]:
        self.grammar.threads.add(threading.current_thread().name)
        if self.last < self.grammar.fails_below:
            raise RequestError("too complex", param="response_format")
        mask = np.zeros(VOCABULARY, np.bool_)
        mask[EOS if self.last < 10 else slice(0, self.last)] = True
        return mask

    def accept(self, token_id: int) -> None:
        assert token_id < self.last
        self.last = token_id


def make_core(*, max_batch_size: int = 4, cache_lens: int = 1024) -> EngineCore:
    settings = EngineSettings(
        cache_lens=cache_lens,
        max_batch_size=max_batch_size,
        max_new_tokens=256,
        chunk_size=16,
        prefill_chunk_size=16,
        max_queue=64,
        block_tokens=BLOCK_TOKENS,
    )
    config = scheduler_config(settings)
    return EngineCore(FakeModel((config.num_blocks + 1) * BLOCK_TOKENS, BLOCK_TOKENS, VOCABULARY), config)


def make_request(n: int, grammar: Countdown | None) -> Request:
    sampling = SamplingParams(
        max_tokens=60, temperature=1.0 if n % 2 else 0.0, seed=n, stop_token_ids=frozenset({EOS}), constraint=grammar
    )
    return Request("test", tuple(range(n % 40 + 1)), sampling)


def test_every_token_is_one_that_its_grammar_allows_and_the_grammar_ends_the_text():
    results = generate(make_core(), [make_request(n, Countdown()) for n in range(30)])
    for result in results:
        *said, last = result.token_ids
        assert last == EOS
        assert said == sorted(set(said), reverse=True)
        assert said[-1] < 10
        assert result.finish_reason is FinishReason.STOP


def test_masks_change_nothing_but_their_own_request_in_any_batch_and_after_preemption():
    def requests() -> list[Request]:
        return [make_request(n, Countdown() if n % 3 else None) for n in range(24)]

    alone = [generate(make_core(max_batch_size=1), [request])[0].token_ids for request in requests()]
    assert [result.token_ids for result in generate(make_core(), requests())] == alone
    tight = make_core(cache_lens=128)
    assert [result.token_ids for result in generate(tight, requests())] == alone
    assert tight.stats().preemptions > 0


def test_masks_are_computed_on_the_helper_thread():
    grammar = Countdown()
    generate(make_core(), [make_request(3, grammar)])
    (name,) = grammar.threads
    assert name.startswith("ballast-masks")


def test_a_grammar_that_gives_up_ends_its_own_request_alone():
    core = make_core()
    core.add(1, make_request(2, Countdown(fails_below=50)), seed=1)
    core.add(2, make_request(2, Countdown()), seed=1)
    failed, ended = {}, []
    while core.stats().running + core.stats().waiting:
        result = core.step()
        failed |= dict(result.failed)
        ended += [event.seq for event in result.events if event.finish_reason]
    assert list(failed) == [1]
    assert str(failed[1]) == "too complex"
    assert ended == [2]
    assert core.stats().used_tokens == 0


def test_a_mask_that_never_comes_is_an_error_of_its_request():
    release = threading.Event()

    class Stuck(CountdownState):
        def allowed(self) -> NDArray[np.bool_]:
            assert release.wait(20)
            return super().allowed()

    sequence = Sequence(make_request(1, Countdown()), seed=1)
    sequence.constraint = Stuck(Countdown())
    worker = MaskWorker(limit_s=0.05)
    worker.begin({1: sequence})
    with pytest.raises(RequestError, match=r"longer than 0\.05 s"):
        worker.take(1)
    release.set()
