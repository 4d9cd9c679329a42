"""The engine thread: streams, aborts in every state, bounds, drain, death."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import sched
from ballast.awake_clock import AwakeClock
from ballast.engine import engine as engine_module
from ballast.engine.admission.retry_schedule import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, RetrySchedule
from ballast.engine.core import EngineCore
from ballast.engine.engine import Engine, EngineState
from ballast.engine.publishing import LONGEST_LOOK_S, MAX_DESCRIBED
from ballast.engine.request import FinishReason, Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, build_engine, scheduler_config
from ballast.engine.stream import RequestStream
from ballast.errors import CapacityError, EngineDeadError, RequestError
from ballast.model.batch import Batch
from ballast.model.runner import Runner
from devkit.servers.fake_model import FakeModel, fake_next_token

VOCABULARY = 1000
WAIT_S = 20


class Recorder:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.first_tokens = 0
        self.inter_tokens = 0
        self.finished = 0

    def on_step(self, kind: str, duration_s: float, num_tokens: int) -> None:
        self.steps.append((kind, num_tokens))

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        assert ttft_s >= queue_s >= 0
        self.first_tokens += 1

    def on_inter_token(self, latency_s: float) -> None:
        self.inter_tokens += 1

    def on_finish(self, duration_s: float, reason: FinishReason, prompt_tokens: int, generated_tokens: int) -> None:
        assert reason in FinishReason
        assert prompt_tokens >= 1 <= generated_tokens
        self.finished += 1


class Paced(Runner):
    """A runner whose steps, except the warm-up's, wait until they are allowed."""

    def __init__(self) -> None:
        self._allowed = threading.Semaphore(1)
        self.num_begun = 0

    def around(self, runner: Runner) -> Runner:
        self._runner = runner
        return self

    def allow(self, num_steps: int = 10_000) -> None:
        self._allowed.release(num_steps)

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        alive()
        self.num_begun += 1
        assert self._allowed.acquire(timeout=WAIT_S), "no step was allowed"
        return self._runner.forward(batch, alive)


@contextlib.asynccontextmanager
async def running_engine(
    *,
    step_s: float = 0.0,
    cache_lens: int = 4096,
    max_batch_size: int = 4,
    chunk_size: int = 64,
    prefill_chunk_size: int | None = None,
    max_queue: int = 16,
    max_queue_wait_s: float = 0.0,
    wrap: Callable[[Runner], Runner] = lambda runner: runner,
    observer: Recorder | None = None,
) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        cache_lens=cache_lens,
        max_batch_size=max_batch_size,
        max_new_tokens=256,
        chunk_size=chunk_size,
        prefill_chunk_size=prefill_chunk_size or chunk_size,
        max_queue=max_queue,
        max_queue_wait_s=max_queue_wait_s,
        block_tokens=16,
    )
    slots = (scheduler_config(settings).num_blocks + 1) * 16

    def load(report: Callable[[float], None]) -> Runner:
        report(0.5)
        return wrap(FakeModel(slots, 16, VOCABULARY, step_s))

    engine = build_engine(load, settings, context_length=100_000, observer=observer)
    engine.start()
    await until(lambda: engine.state is not EngineState.LOADING)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop, 0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def make_request(prompt: list[int], max_tokens: int, **params: object) -> Request:
    return Request("test", tuple(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0, **params))


async def collect(stream: RequestStream) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    reason = None
    async with asyncio.timeout(WAIT_S):
        async for output in stream:
            tokens += output.token_ids
            reason = output.finish_reason
    return tokens, reason


def expected_text(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(fake_next_token(tokens[-1], len(tokens) - 1, VOCABULARY))
    return tokens[len(prompt) :]


async def test_concurrent_streams_each_get_their_own_text():
    recorder = Recorder()
    async with running_engine(observer=recorder) as engine:
        prompts = [[seed] * (seed + 1) for seed in range(16)]
        streams = [engine.submit(make_request(prompt, 30)) for prompt in prompts]
        for prompt, (tokens, reason) in zip(prompts, await asyncio.gather(*map(collect, streams)), strict=True):
            assert tokens == expected_text(prompt, 30)
            assert reason is FinishReason.LENGTH
        await until(lambda: engine.snapshot().used_tokens == 0)
        snapshot = engine.snapshot()
        assert (snapshot.running, snapshot.waiting, snapshot.has_work) == (0, 0, False)
        assert snapshot.generation_tokens == 16 * 30
        assert snapshot.prompt_tokens == sum(map(len, prompts))
    assert (recorder.first_tokens, recorder.inter_tokens, recorder.finished) == (16, 16 * 29, 16)
    assert sum(count for _, count in recorder.steps) >= snapshot.prompt_tokens


async def test_a_runners_limit_on_prefill_tokens_shortens_steps():
    class Bounded(Runner):
        max_prefill_tokens = 16

        def __init__(self, runner: Runner) -> None:
            self._runner = runner

        def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
            return self._runner.forward(batch, alive)

    recorder = Recorder()
    async with running_engine(observer=recorder, chunk_size=16, prefill_chunk_size=64, wrap=Bounded) as engine:
        prompt = [3] * 100
        tokens, _ = await collect(engine.submit(make_request(prompt, 2)))
        assert tokens == expected_text(prompt, 2)
    assert max(count for _, count in recorder.steps) == 16


class Wrapped(Runner):
    """Delegates to another runner."""

    model: Runner

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        return self.model.forward(batch, alive)


async def test_idle_work_runs_while_there_are_no_requests() -> None:
    class Spare(Wrapped):
        def around(self, runner: Runner) -> Runner:
            self.model = runner
            self.calls = 0
            return self

        def use_spare_time(self) -> bool:
            self.calls += 1
            return self.calls < 5

    spare = Spare()
    async with running_engine(wrap=spare.around) as engine:
        await until(lambda: spare.calls == 5)
        tokens, _ = await collect(engine.submit(make_request([3], 4)))
        assert tokens == expected_text([3], 4)
        await until(lambda: spare.calls == 6)
        assert engine.state is EngineState.READY


async def test_an_idle_engine_polls_for_idle_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "IDLE_WAKE_S", 0.01)

    class Late(Wrapped):
        def around(self, runner: Runner) -> Runner:
            self.model = runner
            self.calls = 0
            return self

        def use_spare_time(self) -> bool:
            self.calls += 1
            return self.calls == 3

    late = Late()
    async with running_engine(wrap=late.around):
        await until(lambda: late.calls > 5)


async def test_a_request_does_not_wait_for_all_idle_work() -> None:
    class Endless(Wrapped):
        def __init__(self, runner: Runner) -> None:
            self.model = runner

        def use_spare_time(self) -> bool:
            return True

    async with running_engine(wrap=Endless) as engine:
        assert (await collect(engine.submit(make_request([3], 4))))[0] == expected_text([3], 4)


async def test_abort_while_decoding_frees_the_kv():
    pace = Paced()
    async with running_engine(wrap=pace.around) as engine:
        stream = engine.submit(make_request([1] * 50, 200))
        pace.allow(3)
        await anext(stream)
        assert engine.snapshot().used_tokens > 0
        stream.abort()
        pace.allow()
        await until(lambda: engine.snapshot().used_tokens == 0)
        assert not engine.has_work


async def test_abort_while_queued_never_runs_the_request():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1) as engine:
        first = engine.submit(make_request([1], 40))
        second = engine.submit(make_request([2] * 500, 40))
        pace.allow(2)
        await anext(first)
        await until(lambda: engine.snapshot().waiting == 1)
        second.abort()
        pace.allow()
        await until(lambda: engine.snapshot().waiting == 0)
        await collect(first)
        assert engine.snapshot().prompt_tokens == 1


async def test_abort_during_prefill_frees_the_kv():
    pace = Paced()
    async with running_engine(wrap=pace.around, chunk_size=8) as engine:
        stream = engine.submit(make_request([3] * 2000, 10))
        pace.allow(3)
        await until(lambda: engine.snapshot().used_tokens > 0)
        stream.abort()
        pace.allow()
        await until(lambda: engine.snapshot().used_tokens == 0)
        assert engine.snapshot().generation_tokens == 0


async def test_abort_is_idempotent_and_harmless_after_the_end():
    async with running_engine() as engine:
        stream = engine.submit(make_request([1], 2))
        await collect(stream)
        stream.abort()
        stream.abort()
        assert (await collect(engine.submit(make_request([1], 3))))[0] == expected_text([1], 3)


async def test_a_full_queue_rejects_with_a_retry_time():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1, max_queue=2) as engine:
        streams = [engine.submit(make_request([1], 50))]
        pace.allow(2)
        await anext(streams[0])
        streams += [engine.submit(make_request([1], 1)) for _ in range(2)]
        with pytest.raises(CapacityError) as refusal:
            engine.submit(make_request([1], 1))
        assert refusal.value.status == 429
        assert MIN_RETRY_AFTER_S <= refusal.value.retry_after_s <= MAX_RETRY_AFTER_S
        for stream in streams:
            stream.abort()
        pace.allow()
        await until(lambda: engine.snapshot().waiting == 0)
        assert len((await collect(engine.submit(make_request([1], 1))))[0]) == 1


async def test_ended_requests_are_measured_without_idle_time(monkeypatch):
    reported = []

    def ran(self, run_s, num_ended):
        reported.append((run_s, num_ended))
        measure(self, run_s, num_ended)

    measure = RetrySchedule.ran
    monkeypatch.setattr(RetrySchedule, "ran", ran)
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=2) as engine:
        assert not any(run_s for run_s, _ in reported)
        ends, leaves, waits = (engine.submit(make_request([seed], 3)) for seed in range(3))
        pace.allow(1)
        await anext(leaves)
        waits.abort()
        leaves.abort()
        pace.allow()
        await collect(ends)
        await until(lambda: not engine.has_work)
        assert sum(num_ended for _, num_ended in reported) == 2, "a request that only waited was never in the batch"
        assert sum(run_s for run_s, _ in reported) > 0
        reported.clear()
        await collect(engine.submit(make_request([1], 1)))
        assert reported[0] == (0.0, 0), "the engine was idle until then"


async def test_a_burst_that_finds_free_slots_does_not_count_as_waiting():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=4, max_queue=1) as engine:
        streams = [engine.submit(make_request([seed], 3)) for seed in range(5)]
        with pytest.raises(CapacityError):
            engine.submit(make_request([9], 3))
        pace.allow()
        assert [len(tokens) for tokens, _ in await asyncio.gather(*map(collect, streams))] == [3] * 5


async def test_abort_ends_the_iteration_of_a_waiting_reader():
    pace = Paced()
    async with running_engine(wrap=pace.around, chunk_size=8) as engine:
        stream = engine.submit(make_request([1] * 400, 10))
        waiting = asyncio.create_task(collect(stream))
        pace.allow(3)
        await until(lambda: engine.snapshot().used_tokens > 0)
        stream.abort()
        assert await waiting == ([], None)
        pace.allow()


async def test_a_prompt_that_is_too_long_is_a_request_error_with_the_openai_code():
    async with running_engine(cache_lens=256) as engine:
        with pytest.raises(RequestError, match="maximum context length is 256 tokens") as refusal:
            engine.submit(make_request([1] * 250, 10))
        assert refusal.value.code == "context_length_exceeded"
        assert (await collect(engine.submit(make_request([1] * 246, 10))))[1] is FinishReason.LENGTH


async def test_drain_rejects_new_requests_and_finishes_running_ones():
    async with running_engine(step_s=0.002) as engine:
        stream = engine.submit(make_request([1], 50))
        await anext(stream)
        engine.begin_drain()
        with pytest.raises(CapacityError) as refusal:
            engine.submit(make_request([1], 1))
        assert refusal.value.status == 503
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop, WAIT_S))
        tokens, reason = await collect(stream)
        assert (len(tokens), reason) == (49, FinishReason.LENGTH)
        await stopping
        assert engine.state is EngineState.STOPPED


async def test_requests_that_outlive_the_drain_get_an_error():
    async with running_engine(step_s=0.01) as engine:
        stream = engine.submit(make_request([1], 250))
        await anext(stream)
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop, 0.1))
        with pytest.raises(CapacityError, match="shutting down"):
            await collect(stream)
        await stopping


class NotANumber(Runner):
    """A runner whose logits for one token are NaN."""

    def __init__(self, runner: Runner, token: int) -> None:
        self._runner, self._token = runner, token

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        logits = self._runner.forward(batch, alive)
        logits[batch.token_ids[batch.sampled] == self._token] = np.nan
        return logits


async def test_only_the_request_with_nan_logits_fails():
    async with running_engine(wrap=lambda runner: NotANumber(runner, 7)) as engine:
        good, bad = engine.submit(make_request([1], 20)), engine.submit(make_request([7], 20))
        with pytest.raises(RequestError, match="nan"):
            await collect(bad)
        assert (await collect(good))[0] == expected_text([1], 20)
        await until(lambda: engine.snapshot().used_tokens == 0)
        assert engine.state is EngineState.READY


async def test_the_invariants_are_checked_whenever_the_engine_goes_idle(monkeypatch: pytest.MonkeyPatch):
    checks: list[int] = []
    check = EngineCore.check

    def counted(core: EngineCore) -> None:
        checks.append(1)
        check(core)

    monkeypatch.setattr(EngineCore, "check", counted)
    async with running_engine() as engine:
        await collect(engine.submit(make_request([1], 3)))
        await until(lambda: not engine.has_work)
        before = len(checks)
        await collect(engine.submit(make_request([1], 3)))
        await until(lambda: len(checks) > before)


async def test_a_hang_is_measured_only_while_there_is_work_and_from_its_start():
    pace = Paced()
    async with running_engine(wrap=pace.around) as engine:
        engine._publisher.last_progress -= 100  # as if it had been idle for a long time
        assert engine.snapshot().silence_s == 0.0
        engine.submit(make_request([1], 50))
        assert engine.snapshot().silence_s < 50
        pace.allow(2)
        await until(lambda: pace.num_begun == 4)  # the warm-up, two allowed steps, one that waits
        engine._publisher.last_progress -= 100
        assert engine.snapshot().silence_s > 50
        pace.allow()


async def test_a_process_pause_is_not_a_hang_but_a_hang_after_it_is():
    pace = Paced()
    async with running_engine(wrap=pace.around) as engine:
        system_s = [1000.0]
        engine._publisher.clock = AwakeClock(LONGEST_LOOK_S, lambda: system_s[0])
        engine.submit(make_request([1], 50))
        await until(lambda: pace.num_begun == 2)
        system_s[0] += 3600  # SIGSTOP, or a suspended machine
        assert engine.snapshot().silence_s <= LONGEST_LOOK_S
        for _ in range(40):  # the process runs again and is checked
            system_s[0] += 1
            engine.snapshot()
        assert engine.snapshot().silence_s >= 40
        pace.allow()


async def test_the_view_of_a_long_queue_is_bounded():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=2, max_queue=300) as engine:
        first = engine.submit(make_request([0], 2))
        await until(lambda: pace.num_begun == 2)
        streams = [engine.submit(make_request([seed], 2)) for seed in range(1, 200)]
        pace.allow(1)
        await anext(first)
        await until(lambda: len(engine.describe()) > 1)
        view = engine.describe()
        assert [line["state"] for line in view] == ["decode", *["waiting"] * MAX_DESCRIBED]
        assert engine.snapshot().waiting == 199
        for stream in streams:
            stream.abort()
        pace.allow()


async def test_the_count_of_waiting_prompt_tokens_is_correct_after_every_exit_from_the_queue():
    pace = Paced()
    async with running_engine(wrap=lambda runner: pace.around(NotANumber(runner, 7)), max_batch_size=1) as engine:
        first = engine.submit(make_request([1] * 10, 40))
        assert engine._admission.waiting_tokens == 10
        pace.allow(1)
        await anext(first)
        assert engine._admission.waiting_tokens == 0
        failing, aborted, early, *several = (
            engine.submit(make_request([7] * 20, 3)),
            engine.submit(make_request([3] * 30, 3)),
            engine.submit(make_request([4] * 50, 3)),
            engine.submit(*(make_request([5] * 100, 3) for _ in range(2))),
        )
        assert engine._admission.waiting_tokens == 200
        early.abort()
        pace.allow(1)
        await anext(first)
        await until(lambda: engine._admission.waiting_tokens == 150)
        aborted.abort()
        pace.allow()
        with pytest.raises(RequestError):
            await collect(failing)
        await collect(*several)
        await until(lambda: not engine.has_work)
        assert engine._admission.waiting_tokens == 0


async def test_one_prompt_at_several_priorities_is_served_at_each():
    async with running_engine() as engine:
        requests = [
            Request("test", (5,) * 40, SamplingParams(max_tokens=3, temperature=0.0), priority=priority)
            for priority in (1, 0, 1)
        ]
        stream = engine.submit(*requests)
        async with asyncio.timeout(WAIT_S):
            assert sorted([output.index async for output in stream]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


class FailsAtStep(Runner):
    """A runner that fails after some steps."""

    def __init__(self, runner: Runner, step: int) -> None:
        self._runner, self._left = runner, step

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("the kernel caught fire")
        return self._runner.forward(batch, alive)


async def test_a_failing_model_ends_every_request_with_the_reason():
    pace = Paced()
    async with running_engine(wrap=lambda runner: pace.around(FailsAtStep(runner, 5)), max_batch_size=1) as engine:
        streams = [engine.submit(make_request([1], 50)) for _ in range(3)]
        pace.allow()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="caught fire"):
                await collect(stream)
        assert engine.state is EngineState.DEAD
        assert isinstance(engine.failure, RuntimeError)
        with pytest.raises(EngineDeadError):
            engine.submit(make_request([1], 1))


async def test_a_model_that_fails_to_load_leaves_a_dead_engine():
    def explode(report: Callable[[float], None]) -> Runner:
        raise OSError("disk gone")

    settings = EngineSettings(
        cache_lens=256, max_batch_size=1, max_new_tokens=8, chunk_size=8, prefill_chunk_size=8, max_queue=1
    )
    died = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = build_engine(explode, settings, context_length=256, on_death=lambda: loop.call_soon_threadsafe(died.set))
    engine.start()
    async with asyncio.timeout(WAIT_S):
        await died.wait()
    assert engine.state is EngineState.DEAD
    assert "disk gone" in str(engine.failure)


async def test_requests_submitted_together_share_a_stream_and_the_prompt():
    prompt = [5] * 40
    async with running_engine() as engine:
        stream = engine.submit(*(make_request(prompt, count) for count in (3, 20, 7)))
        tokens: list[list[int]] = [[], [], []]
        reasons = []
        async for output in stream:
            tokens[output.index] += output.token_ids
            if output.finish_reason is not None:
                reasons.append(output.index)
        assert tokens == [list(expected_text(prompt, count)) for count in (3, 20, 7)]
        assert reasons == [0, 2, 1]
        assert engine.snapshot().prefix_hit_tokens == 2 * 32, "two full blocks of 16 for each of the two later requests"


async def test_one_of_several_requests_can_be_aborted():
    pace = Paced()
    async with running_engine(wrap=pace.around) as engine:
        stream = engine.submit(make_request([1], 200), make_request([2], 20))
        pace.allow(2)
        await anext(stream)
        stream.abort(0)
        pace.allow()
        seen = {output.index async for output in stream}
        assert seen == {1}
        await until(lambda: engine.snapshot().used_tokens == 0)
        await until(lambda: not engine.has_work)


async def test_requests_submitted_together_are_all_accepted_or_all_rejected():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1, max_queue=3) as engine:
        first = engine.submit(make_request([1], 100))
        pace.allow(2)
        await anext(first)
        with pytest.raises(CapacityError):
            engine.submit(*(make_request([1], 1) for _ in range(4)))
        assert engine.snapshot().waiting == 0
        taken = engine.submit(*(make_request([1], 1) for _ in range(3)))
        first.abort()
        pace.allow()
        assert len([output async for output in taken]) == 3


async def test_a_request_of_higher_priority_goes_first():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1) as engine:
        first = engine.submit(make_request([1], 20))
        pace.allow(2)
        await anext(first)
        low, high = (
            engine.submit(Request("test", (2,), SamplingParams(max_tokens=3), priority=priority))
            for priority in (5, -5)
        )
        pace.allow()
        ended = []

        async def note(name: str, stream: RequestStream) -> None:
            await collect(stream)
            ended.append(name)

        await asyncio.gather(note("low", low), note("high", high), note("first", first))
        assert ended == ["first", "high", "low"]


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step costs 1 s, and none is measured."""

    def with_costs(config: sched.SchedulerConfig, *_: object) -> sched.SchedulerConfig:
        return with_changes(config, decode_costs=[(1, 1.0)])

    monkeypatch.setattr(engine_module, "with_measured_costs", with_costs)
    monkeypatch.setattr(Paced, "vocabulary", VOCABULARY, raising=False)


@pytest.mark.usefixtures("known_costs")
async def test_a_request_over_the_limit_is_rejected_with_a_retry_time():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1, max_queue_wait_s=10.0) as engine:
        first = engine.submit(make_request([1], 40))
        with pytest.raises(
            CapacityError, match=r"the predicted queue time is .* s and --max_queue_wait_s is 10"
        ) as refused:
            engine.submit(make_request([2], 40))
        assert refused.value.status == 429
        assert 0 < refused.value.retry_after_s <= MAX_RETRY_AFTER_S
        assert engine.snapshot().predicted_wait_s > 10.0
        pace.allow()
        await collect(first)
        await until(lambda: engine.snapshot().predicted_wait_s == 0)


@pytest.mark.usefixtures("known_costs")
async def test_the_predicted_wait_of_a_client_depends_on_its_turn():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=1, max_queue_wait_s=9.0) as engine:
        heavy = [engine.submit(replace(make_request([1], 3), client=1)) for _ in range(4)]
        with pytest.raises(CapacityError):
            engine.submit(replace(make_request([1], 3), client=1))
        light = engine.submit(replace(make_request([2], 3), client=2))
        pace.allow()
        await asyncio.gather(*map(collect, [*heavy, light]))


@pytest.mark.usefixtures("known_costs")
async def test_a_request_that_gets_a_free_slot_is_not_refused_for_its_wait():
    pace = Paced()
    async with running_engine(wrap=pace.around, max_batch_size=4, max_queue_wait_s=0.001) as engine:
        streams = [engine.submit(make_request([seed], 3)) for seed in range(1, 5)]
        with pytest.raises(CapacityError):
            engine.submit(make_request([9], 3))
        pace.allow()
        await asyncio.gather(*map(collect, streams))


@pytest.mark.usefixtures("known_costs")
async def test_an_idle_engine_gathers_requests_that_arrive_together():
    pace, recorder = Paced(), Recorder()
    async with running_engine(wrap=pace.around, observer=recorder) as engine:
        pace.allow()
        arriving = 3
        engine.count_arriving = lambda: arriving
        streams = []
        for seed in (1, 2, 3):
            streams.append(engine.submit(make_request([seed] * 5, 2)))
            arriving -= 1
            await asyncio.sleep(0.005)
        await asyncio.gather(*map(collect, streams))
        assert recorder.steps[0] == ("prefill", 15)
