"""Bodies before they are jobs: nobody's work is done for nobody, a full queue says when to come back, and what is
written is written in parts."""

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

from ballast.errors import CapacityError
from ballast.server import json_text
from ballast.server.exchange import Record
from ballast.server.preparation import TEXT_THREADS, Preparation
from ballast.server.wanted import ClientGoneError

MAX_WAITING = 4


class Client:
    """Sends a body at once, and stays until it leaves."""

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
        return Request({"type": "http", "headers": []}, self.receive)


@pytest.fixture
async def made() -> AsyncIterator[tuple[Preparation, threading.Event]]:
    """A preparation whose only thread is busy until the event is set."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(release.wait, 60)
        leaving = asyncio.get_running_loop().create_future()
        yield Preparation(executor, MAX_WAITING, 1000, 0.0, leaving), release
        release.set()


async def run(preparation: Preparation, client: Client, work: Callable[[bytes], Any]) -> Any:
    async with asyncio.timeout(60):
        return await preparation.run(client.request(), Record("r"), work)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_client_that_leaves_while_it_waits_has_nothing_done_for_it(
    made: tuple[Preparation, threading.Event],
) -> None:
    preparation, release = made
    done: list[bytes] = []
    leaver, stayer = Client(), Client()
    leaving = asyncio.create_task(run(preparation, leaver, done.append))
    staying = asyncio.create_task(run(preparation, stayer, lambda data: data.decode()))
    await until(lambda: preparation.num_waiting == 2)
    leaver.gone.set()
    with pytest.raises(ClientGoneError):
        await leaving
    assert preparation.num_waiting == 1
    release.set()
    assert await staying == "body"
    assert done == []
    assert preparation.num_waiting == 0


async def test_a_full_queue_says_when_it_will_have_been_served(made: tuple[Preparation, threading.Event]) -> None:
    preparation, release = made
    release.set()
    took_s = 1.5
    await run(preparation, Client(), lambda _: time.sleep(took_s))
    release.clear()
    tasks = [asyncio.create_task(run(preparation, Client(), lambda _: release.wait(60))) for _ in range(MAX_WAITING)]
    await until(lambda: preparation.num_waiting == MAX_WAITING)
    with pytest.raises(CapacityError) as refused:
        await run(preparation, Client(), len)
    assert refused.value.retry_after_s >= took_s * (MAX_WAITING + 1) / TEXT_THREADS
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


def test_no_one_call_writes_more_than_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = json_text.to_json

    def counted(value: Any) -> bytes:
        written.append(len(value) if isinstance(value, list) else 1)
        return write(value)

    monkeypatch.setattr(json_text, "to_json", counted)
    json_text.list_to_json(list(range(100_000)), str)
    assert sum(written) == 100_000
    assert max(written) <= json_text.PART_ITEMS
