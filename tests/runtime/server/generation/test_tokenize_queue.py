"""The queue before the engine's: no work for disconnected clients, a full queue reports when to retry, and long lists
are processed in chunks."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from ballast.engine.admission.retry_schedule import MIN_RETRY_AFTER_S
from ballast.errors import CapacityError
from ballast.generation.text_threads import TextThreads
from ballast.server.requests.cancellation import ClientGoneError
from ballast.server.requests.record import Record
from ballast.server.requests.tokenize_queue import TokenizeQueue
from ballast.wire import json_text

MAX_WAITING = 4


class Client:
    """Sends a body immediately, and stays connected until `gone` is set."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._sent = False

    async def receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"body", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def request(self) -> Request:
        return Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, self.receive)


@pytest.fixture
async def made() -> AsyncIterator[tuple[TokenizeQueue, threading.Event]]:
    """A queue whose only thread is busy until the event is set."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(release.wait, 60)
        shutting_down = asyncio.get_running_loop().create_future()
        yield TokenizeQueue(TextThreads(executor, executor), MAX_WAITING, 1000, 0.0, shutting_down), release
        release.set()


async def run(queue: TokenizeQueue, request: Request, work: Callable[[bytes], Any]) -> Any:
    async with asyncio.timeout(60), queue.entered(request, Record("r")) as queued:
        body = await queued.read()
        return await queued.work(False, work, body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_client_that_disconnects_while_waiting_is_not_processed(
    made: tuple[TokenizeQueue, threading.Event],
) -> None:
    queue, release = made
    done: list[bytes] = []
    leaver, stayer = Client(), Client()
    leaving = asyncio.create_task(run(queue, leaver.request(), done.append))
    staying = asyncio.create_task(run(queue, stayer.request(), lambda data: data.decode()))
    await until(lambda: queue.threads.num_waiting == 2)
    leaver.gone.set()
    with pytest.raises(ClientGoneError):
        await leaving
    assert queue.threads.num_waiting == 1
    release.set()
    assert await staying == "body"
    assert done == []
    assert queue.threads.num_waiting == 0


async def test_requests_being_read_or_waiting_get_an_error_when_the_server_stops(
    made: tuple[TokenizeQueue, threading.Event],
) -> None:
    queue, _ = made
    read_for_ever = asyncio.Event()

    async def receive() -> Message:
        await read_for_ever.wait()
        raise AssertionError("the event is never set")

    headers = [(b"content-type", b"application/json")]
    slow = Request({"type": "http", "headers": headers}, receive)
    reading = asyncio.create_task(run(queue, slow, len))
    waiting = asyncio.create_task(run(queue, Client().request(), len))
    await until(lambda: queue.threads.num_waiting == 1)
    for task in (reading, waiting):
        task.cancel("as uvicorn does")
        with pytest.raises(CapacityError, match="the server is shutting down"):
            await task
    assert queue.threads.num_waiting == 0


async def test_a_full_queue_reports_when_a_slot_will_be_free(made: tuple[TokenizeQueue, threading.Event]) -> None:
    queue, release = made
    release.set()
    await run(queue, Client().request(), lambda _: time.sleep(1.5))
    release.clear()
    tasks = [
        asyncio.create_task(run(queue, Client().request(), lambda _: release.wait(60))) for _ in range(MAX_WAITING)
    ]
    await until(lambda: queue.threads.num_waiting == MAX_WAITING)
    with pytest.raises(CapacityError) as refused:
        await run(queue, Client().request(), len)
    assert refused.value.retry_after_s > MIN_RETRY_AFTER_S, "the previous work took long"
    release.set()
    await asyncio.gather(*tasks)


@settings(deadline=None)
@given(st.lists(st.integers() | st.none() | st.text(max_size=3), max_size=9), st.integers(1, 4))
def test_a_list_in_parts_is_the_same_list(items: list[Any], size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_text, "PART_ITEMS", size)
        items = [item if not isinstance(item, int) else item % 2**32 for item in items]
        assert json.loads(json_text.list_to_json(items)) == items
        assert json.loads(json_text.list_to_json(items, str)) == [str(item) for item in items]


def test_no_single_call_serialises_more_than_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = json_text.to_json

    def counted(value: Any) -> bytes:
        written.append(len(value) if isinstance(value, list) else 1)
        return write(value)

    monkeypatch.setattr(json_text, "to_json", counted)
    json_text.list_to_json(list(range(100_000)), str)
    assert sum(written) == 100_000
    assert max(written) <= json_text.PART_ITEMS
