"""Spans of passes: what a collector receives, and that no code waits for it."""

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager

import pytest

from ballast_operator.process import traces as module
from ballast_operator.process.traces import MAX_WAITING, Traces
from devkit.servers.collector import Collector, attributes


@asynccontextmanager
async def sending(url):
    traces = Traces(url, "models", "op-1")
    task = asyncio.create_task(traces.run())
    await asyncio.sleep(0)
    try:
        yield traces
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def collector():
    with Collector().serving() as found:
        yield found


async def test_a_pass_is_a_span_with_its_requests_and_the_last_spans_are_sent_at_exit(collector):
    async with sending(f"{collector.url}/") as traces:
        traces.requested()  # outside a pass
        with traces.span("reconcile", {"ballast.service": "chat"}):
            traces.requested()
            await asyncio.gather(asyncio.to_thread(traces.requested), one_request(traces))
        with pytest.raises(ValueError, match="no such"), traces.span("resync", {}):
            raise ValueError("no such thing")
    whole, failed = collector.spans
    assert (whole["name"], failed["name"]) == ("reconcile", "resync")
    assert attributes(whole) == {"ballast.service": "chat", "ballast.api_requests": "3"}
    assert int(whole["startTimeUnixNano"]) <= int(whole["endTimeUnixNano"])
    assert (len(whole["traceId"]), len(whole["spanId"])) == (32, 16)
    assert whole["traceId"] != failed["traceId"]
    assert "status" not in whole
    assert failed["status"] == {"code": 2, "message": "ValueError: no such thing"}
    assert collector.paths == [("/v1/traces", "application/json")]
    assert collector.resources == [{"service.name": "models", "service.instance.id": "op-1"}]


async def one_request(traces):
    traces.requested()


@pytest.mark.parametrize("status", [None, 503, 302])
async def test_an_unreachable_collector_costs_the_spans_and_one_log_line(status, caplog, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    with contextlib.ExitStack() as stack:
        url = "http://127.0.0.1:9" if status is None else stack.enter_context(Collector(status).serving()).url
        async with sending(url) as traces:
            for _ in range(3):
                with traces.span("resync", {}):
                    pass
                async with asyncio.timeout(30):
                    while traces._waiting:
                        await asyncio.sleep(0.01)
    (line,) = [record for record in caplog.records if record.message == "spans were dropped"]
    assert line.collector == f"{url}/v1/traces"
    assert status is None or line.reason == f"it answered {status}"


async def test_spans_whose_transmission_was_interrupted_at_exit_are_resent(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    begun, bodies = asyncio.Event(), []

    async def take(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line for line in head.lower().split(b"\r\n") if b"content-length" in line).split(b":")[1])
        bodies.append(json.loads(await reader.readexactly(length)))
        if begun.is_set():  # the first is never answered
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        begun.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with sending(f"http://{host}:{port}") as traces:
            with traces.span("resync", {}):
                pass
            async with asyncio.timeout(30):
                await begun.wait()
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


async def test_waiting_spans_are_bounded():
    traces = Traces("http://127.0.0.1:9", "models", "op-1")
    for _ in range(MAX_WAITING + 5):
        with traces.span("resync", {}):
            pass
    assert len(traces._waiting) == MAX_WAITING
    assert traces._dropped == 5


async def test_without_an_endpoint_nothing_is_kept():
    traces = Traces(None, "models", "op-1")
    with traces.span("resync", {}):
        traces.requested()
    assert not traces._waiting
    await traces.run()  # ends immediately
