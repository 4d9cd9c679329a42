"""Grammars in the engine: masks arrive in time, failures affect only their request, and text depends on nothing
else."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import FinishReason, Request, SamplingParams
from ballast.engine.sampling import masks
from ballast.engine.sampling.masks import MaskWorker
from ballast.engine.sequence import Sequence
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.errors import RequestError
from devkit.generate import generate
from devkit.servers.fake_model import FakeModel

VOCABULARY = 100
EOS = 99
BLOCK_TOKENS = 16


@dataclass
class Countdown:
    """A grammar in which each token is lower than the previous one, and which ends after a token below 10."""

    fails_below: int = -1
    threads: set[str] = field(default_factory=set)

    def start(self) -> CountdownState:
        return CountdownState(self)


@dataclass
class CountdownState:
    grammar: Countdown
    last: int = 90

    def allowed(self) -> NDArray[np.uint8]:
        self.grammar.threads.add(threading.current_thread().name)
        if self.last < self.grammar.fails_below:
            raise RequestError("too complex", param="response_format")
        mask = np.zeros(VOCABULARY, np.bool_)
        mask[EOS if self.last < 10 else slice(0, self.last)] = True
        return np.packbits(mask, bitorder="little")

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


def test_every_token_is_allowed_by_its_grammar_which_ends_the_text():
    results = generate(make_core(), [make_request(n, Countdown()) for n in range(30)])
    for result in results:
        *message, last = result.token_ids
        assert last == EOS
        assert message == sorted(set(message), reverse=True)
        assert message[-1] < 10
        assert result.finish_reason is FinishReason.STOP


def test_a_grammar_that_has_ended_ends_the_text_before_min_tokens():
    request = make_request(0, Countdown())
    longer = replace(request, sampling=replace(request.sampling, min_tokens=50))
    (expected,), (result,) = (generate(make_core(), [each]) for each in (request, longer))
    assert len(expected.token_ids) < 50
    assert (result.token_ids, result.finish_reason) == (expected.token_ids, FinishReason.STOP)


def test_masks_affect_only_their_own_request_in_any_batch_and_after_preemption():
    def requests() -> list[Request]:
        return [make_request(n, Countdown() if n % 3 else None) for n in range(24)]

    alone = [generate(make_core(max_batch_size=1), [request])[0].token_ids for request in requests()]
    assert [result.token_ids for result in generate(make_core(), requests())] == alone
    tight = make_core(cache_lens=128)
    assert [result.token_ids for result in generate(tight, requests())] == alone
    assert tight.stats().preemptions > 0


def test_masks_are_computed_on_other_threads():
    grammar = Countdown()
    generate(make_core(), [make_request(n, grammar) for n in range(4)])
    assert all(name.startswith("ballast-masks") for name in grammar.threads)


def test_a_failing_grammar_ends_only_its_own_request():
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


class Blocked(CountdownState):
    """A mask that waits until it is released."""

    def __init__(self, grammar: Countdown) -> None:
        super().__init__(grammar)
        self.released = threading.Event()

    def allowed(self) -> NDArray[np.uint8]:
        assert self.released.wait(20)
        return super().allowed()


def sequence_of(state: CountdownState) -> Sequence:
    sequence = Sequence(make_request(1, Countdown()), seed=1)
    sequence.constraint = state
    return sequence


@pytest.fixture
def blocked() -> Iterator[list[Blocked]]:
    states = [Blocked(Countdown()) for _ in range(3)]
    yield states
    for state in states:
        state.released.set()


def test_masks_that_never_arrive_fail_only_their_requests(blocked: list[Blocked]):
    worker = MaskWorker(limit_s=0.05)
    innocent = {seq: sequence_of(CountdownState(Countdown())) for seq in (3, 4, 5)}
    for _ in range(2):  # a late mask does not delay the next step either
        worker.begin({1: sequence_of(blocked.pop()), **innocent})
        with pytest.raises(RequestError, match=r"longer than 0\.05 s") as refusal:
            worker.take(1)
        assert refusal.value.status == 500
        assert [worker.take(seq) is not None for seq in innocent] == [True] * 3


def test_a_step_waits_for_all_its_masks_together_no_longer_than_the_limit(blocked: list[Blocked]):
    worker = MaskWorker(limit_s=0.2)
    worker.begin(dict(enumerate(map(sequence_of, blocked))))
    with pytest.raises(RequestError):
        worker.take(0)
    releases = threading.Timer(0.15, blocked[1].released.set)  # by then the engine has stopped waiting for it
    releases.start()
    with pytest.raises(RequestError):
        worker.take(1)
    releases.join()


def test_masks_of_one_step_are_computed_side_by_side():
    together = threading.Barrier(4, timeout=20)

    class Meets(CountdownState):
        def allowed(self) -> NDArray[np.uint8]:
            together.wait()
            return super().allowed()

    worker = MaskWorker()
    sequences = {seq: sequence_of(Meets(Countdown())) for seq in range(4)}
    for _ in range(3):
        worker.begin(sequences)
        assert all(worker.take(seq) is not None for seq in sequences)


def test_if_too_many_masks_hang_further_ones_are_rejected_immediately(blocked: list[Blocked]):
    worker = MaskWorker(limit_s=0.02, max_late=2)
    worker.begin(dict(enumerate(map(sequence_of, blocked[:2]))))
    for seq in range(2):
        with pytest.raises(RequestError, match="longer than"):
            worker.take(seq)
    worker.begin({3: sequence_of(blocked[2]), 4: sequence_of(CountdownState(Countdown()))})
    for seq in (3, 4):
        with pytest.raises(RequestError, match="2 grammars hang") as refusal:
            worker.take(seq)
        assert refusal.value.status == 503


class Panic(BaseException):
    """A panic in Rust raises this type, which is not an Exception."""


@pytest.mark.parametrize("failing", ["allowed", "accept"])
@pytest.mark.parametrize("error", [Panic("index out of bounds"), ValueError("index out of bounds")])
def test_a_grammar_that_raises_ends_only_its_own_request(failing: str, error: BaseException):
    class Breaks(CountdownState):
        def __getattribute__(self, name: str) -> Any:
            def fail(*_: object) -> None:
                raise error

            return fail if name == failing else super().__getattribute__(name)

    core = make_core()
    core.add(1, make_request(2, Countdown()), seed=1)
    core.add(2, make_request(2, Countdown()), seed=1)
    core._sequences[1].constraint = Breaks(Countdown())
    result = core.step()
    ((seq, reason),) = result.failed
    assert (seq, [event.seq for event in result.events]) == (1, [2])
    assert isinstance(reason, RequestError)
    assert reason.status == 500
    assert "index out of bounds" in str(reason)


def test_threads_end_with_their_worker():
    worker = MaskWorker()
    sequences = {seq: sequence_of(CountdownState(Countdown())) for seq in range(4)}
    worker.begin(sequences)
    assert all(worker.take(seq) is not None for seq in sequences)
    threads = worker.threads
    assert threads
    assert all(thread.daemon for thread in threads), "a hanging thread must not prevent the process from ending"
    del worker
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_one_slow_grammar_does_not_fail_other_requests(monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()

    class SlowOnce(CountdownState):
        def allowed(self) -> NDArray[np.uint8]:
            if self.last < 50:
                assert released.wait(20)
            return super().allowed()

    class Slow(Countdown):
        def start(self) -> CountdownState:
            return SlowOnce(self)

    monkeypatch.setattr(masks, "LIMIT_S", 0.1)
    core = make_core()
    for seq in range(4):
        core.add(seq, make_request(2, Slow() if seq == 0 else Countdown()), seed=1)
    failed, ended = {}, []
    while core.stats().running + core.stats().waiting:
        result = core.step()
        failed |= dict(result.failed)
        ended += [event.seq for event in result.events if event.finish_reason]
    released.set()
    assert list(failed) == [0]
    assert sorted(ended) == [1, 2, 3]
