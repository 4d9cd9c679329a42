"""The queue: one worker per key, repeated keys collapse, failures are retried with increasing delays."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from ballast_operator.control.workqueue import MAX_BACKOFF_S, MAX_HOLD_OFF_S, WorkQueue


class FakeTime:
    """A clock that jumps to the next timer: hours of back-off pass immediately, in order."""

    def __init__(self, loop):
        self.now = loop.time()
        self._select = loop._selector.select
        loop.time = lambda: self.now
        loop._selector.select = self._jump

    def _jump(self, timeout):
        ready = self._select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


@pytest.fixture
async def clock():
    loop = asyncio.get_running_loop()
    time, select = loop.time, loop._selector.select
    FakeTime(loop)
    yield loop.time
    loop.time, loop._selector.select = time, select


class Running:
    """Runs a queue for the duration of a `with` block."""

    def __init__(self, queue):
        self.queue = queue

    async def __aenter__(self):
        self.task = asyncio.create_task(self.queue.run())
        return self.queue

    async def __aexit__(self, *_):
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def make(work, clock, **options):
    return Running(WorkQueue(work, **{"num_workers": 4, "random": lambda: 0.0, "clock": clock, **options}))


async def test_a_key_enqueued_many_times_before_processing_is_processed_once(clock):
    done = Counter()

    async def work(key):
        done[key] += 1

    async with make(work, clock) as queue:
        for _ in range(100):
            queue.enqueue("a")
            queue.enqueue("b")
        await asyncio.sleep(1)
    assert done == {"a": 1, "b": 1}


async def test_a_key_enqueued_during_its_processing_is_processed_again_afterwards(clock):
    running, most, done = Counter(), Counter(), Counter()

    async def work(key):
        running[key] += 1
        most[key] = max(most[key], running[key])
        await asyncio.sleep(1)
        running[key] -= 1
        done[key] += 1

    async with make(work, clock) as queue:
        queue.enqueue("a")
        await asyncio.sleep(0.5)
        for _ in range(10):
            queue.enqueue("a")
        await asyncio.sleep(10)
    assert (most["a"], done["a"]) == (1, 2)


async def test_at_most_one_key_per_worker_runs_and_the_others_wait(clock):
    running, most, done = 0, 0, []

    async def work(key):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        done.append(key)

    async with make(work, clock, num_workers=3) as queue:
        for key in range(10):
            queue.enqueue(key)
        await asyncio.sleep(0.1)
        assert queue.depth == 7
        await asyncio.sleep(20)
    assert most == 3
    assert sorted(done) == list(range(10))


async def test_failures_are_retried_with_growing_delays_up_to_a_limit_and_success_resets_them(clock):
    times = []

    async def work(_):
        times.append(clock())
        if len(times) < 12:
            raise OSError("no")

    async with make(work, clock) as queue:
        queue.enqueue("a")
        await asyncio.sleep(3600)
    delays = [after - before for before, after in pairwise(times)]
    assert delays == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, *[MAX_BACKOFF_S] * 4], abs=0.05)


async def test_jitter_stretches_delays(clock):
    times = []

    async def work(_):
        times.append(clock())
        raise OSError("no")

    async with make(work, clock, random=lambda: 1.0) as queue:
        queue.enqueue("a")
        await asyncio.sleep(0.7)
    assert times[1] - times[0] == pytest.approx(0.6, abs=0.05)


async def test_a_retry_delay_of_the_server_is_respected_despite_new_events(clock):
    times = []

    class BusyError(Exception):
        retry_after_s = 40.0

    async def work(_):
        times.append(clock())
        if len(times) == 1:
            raise BusyError

    async with make(work, clock) as queue:
        queue.enqueue("a")
        for _ in range(100):
            await asyncio.sleep(1)
            if len(times) == 1:
                queue.enqueue("a")
    assert times[1] - times[0] == pytest.approx(40, abs=0.1)


async def test_enqueuing_shortens_a_long_back_off_but_does_not_end_it(clock):
    times = []

    async def work(_):
        times.append(clock())
        if len(times) < 10:
            raise OSError("no")

    async with make(work, clock) as queue:
        queue.enqueue("a")
        await asyncio.sleep(130)
        seen = len(times)
        queue.enqueue("a")
        await asyncio.sleep(MAX_HOLD_OFF_S + 0.1)
        assert len(times) == seen + 1


async def test_work_can_request_another_run(clock):
    times = []

    async def work(_):
        times.append(clock())
        return 30.0

    async with make(work, clock) as queue:
        queue.enqueue("a")
        await asyncio.sleep(95)
    assert len(times) == 4


async def test_every_exit_is_explained(clock):
    reported = []

    async def work(key):
        await asyncio.sleep(2)
        if key == "bad":
            raise OSError("no")

    async with make(
        work, clock, on_done=lambda seconds, error: reported.append((round(seconds), type(error)))
    ) as queue:
        queue.enqueue("good")
        queue.enqueue("bad")
        await asyncio.sleep(2.2)
    assert sorted(reported, key=str) == [(2, type(None)), (2, OSError)]
