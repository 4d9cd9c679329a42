"""The watches' event loop ends on request, with any work in it."""

import asyncio
import threading

import pytest

from ballast_operator.process.loop_shutdown import run_until_stopped

GRACE_S = 0.05


def stopped_at_once():
    stopped = threading.Event()
    stopped.set()
    return stopped


def end_within_limit(work, stopped):
    async def main():
        async with asyncio.timeout(20):
            await run_until_stopped(work, stopped, GRACE_S)

    asyncio.run(main())


async def stubborn(times):
    """Ignores this many cancellations."""
    while times:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            times -= 1
    await asyncio.sleep(60)


def test_work_that_ends_on_request_is_not_cancelled():
    ended = []

    async def work(leave):
        await leave.wait()
        ended.append("by itself")

    end_within_limit(work, stopped_at_once())
    assert ended == ["by itself"]


def test_work_that_ignores_stop_and_cancellation_ends_and_leaves_no_task():
    left = []

    async def work(_):
        left.append(asyncio.create_task(stubborn(3)))
        await stubborn(2)

    end_within_limit(work, stopped_at_once())
    assert [task.cancelled() for task in left] == [True]


def test_a_thread_can_end_running_work():
    stopped, began = threading.Event(), threading.Event()

    async def work(_):
        began.set()
        await stubborn(1)

    running = threading.Thread(target=end_within_limit, args=(work, stopped), daemon=True)
    running.start()
    assert began.wait(20)
    assert running.is_alive()
    stopped.set()
    running.join(20)
    assert not running.is_alive()


def test_work_that_fails_by_itself_is_reported():
    left = []

    async def work(_):
        left.append(asyncio.create_task(stubborn(1)))
        await asyncio.sleep(0)
        raise OSError("no way on")

    with pytest.raises(OSError, match="no way on"):
        end_within_limit(work, threading.Event())
    assert [task.cancelled() for task in left] == [True]
