"""A proxy between a client and the API server that simulates network and server failures.

The client sends plain HTTP with a bearer token; the proxy uses TLS to the server. Faults are tried in the order in
which they were added; the first match acts on the request.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
CONTROL_TIMEOUT_S = 60
TLS_CLOSE_S = 0.25
"""Time for connections to the server to close after handlers were cancelled: TLS shuts down first, without a signal
(https://docs.aiohttp.org/en/stable/client_advanced.html#graceful-shutdown)."""
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding"})
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """A request as received."""

    method: str
    path: str
    query: str

    @property
    def is_watch(self) -> bool:
        return self.method == "GET" and "watch=" in self.query

    @property
    def is_mutating(self) -> bool:
        """Whether it changes an object; leases do not count, because they are renewed periodically."""
        reviews = ("/selfsubject", "/tokenreviews", "/subjectaccessreviews", "/leases")
        return self.method in MUTATING and not any(part in self.path for part in reviews)


@dataclass
class Fault:
    """A fault for requests that match `matches`, applied at most `times` times if that is set.

    status        reply with this code (and `retry_after_s`) without forwarding delay_s       forward after this time
    stall         accept the request and never reply; a running watch stops delivering reset         "before": close
    without forwarding; "mid-body": forward, and abort within the body; "after": the server               performs the
    request, but the client gets no reply gone          a watch gets an ERROR event with code 410 then          called
    at that moment, in the proxy's thread: for example to kill the client
    """

    matches: Callable[[Seen], bool]
    status: int | None = None
    retry_after_s: int | None = None
    delay_s: float = 0
    stall: bool = False
    reset: Literal["before", "mid-body", "after"] | None = None
    gone: bool = False
    then: Callable[[], object] | None = None
    times: int | None = None
    hits: int = field(default=0, init=False)

    def take(self, seen: Seen) -> bool:
        if (self.times is not None and self.hits >= self.times) or not self.matches(seen):
            return False
        self.hits += 1
        return True


class FaultProxy:
    """Runs in its own thread from start() to stop(); the client connects to `url`."""

    def __init__(self, server: str, ca: Path) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._seen: list[tuple[float, Seen]] = []
        self._open: set[asyncio.Transport] = set()
        self._running_watches: set[asyncio.Event] = set()
        self.url = ""

    def start(self) -> None:
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._call(self._serve())}"

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        self._loop.close()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults; frozen watches stay frozen until cut()."""
        with self._lock:
            self._faults.clear()

    def freeze_watches(self) -> None:
        """Running watches stop delivering, but their connections stay open; new watches work."""
        self._call(self._freeze())

    def cut(self) -> None:
        """Abort every open connection."""
        self._call(self._cut())

    def seen(self, since: float = 0) -> list[Seen]:
        """Requests since the monotonic time `since`, in order."""
        with self._lock:
            return [seen for at, seen in self._seen if at >= since]

    # ---- in the proxy's thread ----

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_TIMEOUT_S)

    async def _serve(self) -> int:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=60),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _close(self) -> None:
        await self._cut()
        await self._runner.cleanup()
        await self._session.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(TLS_CLOSE_S)

    async def _cut(self) -> None:
        for transport in list(self._open):
            transport.abort()

    async def _freeze(self) -> None:
        for frozen in self._running_watches:
            frozen.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path, request.query_string)
        with self._lock:
            self._seen.append((time.monotonic(), seen))
            fault = next((f for f in self._faults if f.take(seen)), None)
        transport = request.transport
        assert transport is not None
        self._open.add(transport)
        try:
            return await self._answer(request, seen, fault or Fault(lambda _: False))
        finally:
            self._open.discard(transport)

    async def _answer(self, request: web.Request, seen: Seen, fault: Fault) -> web.StreamResponse:
        if fault.then is not None and fault.reset != "after":
            fault.then()
        if fault.stall:
            await asyncio.Event().wait()
        if fault.reset == "before":
            return self._abort(request)
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.status is not None:
            return _refusal(fault)
        if fault.gone:
            return await _gone(request)
        return await self._forward(request, seen, fault)

    async def _forward(self, request: web.Request, seen: Seen, fault: Fault) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        body = await request.read()
        url = self._server + request.raw_path
        try:
            async with self._session.request(
                request.method, URL(url, encoded=True), headers=headers, data=body or None
            ) as answer:
                if fault.reset == "after":
                    await answer.read()
                    if fault.then is not None:
                        fault.then()
                    return self._abort(request)
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_BY_HOP or name.lower() == "content-encoding":
                        response.headers.add(name, value)
                await response.prepare(request)
                return await self._stream(request, answer, response, seen, fault)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return self._abort(request)  # like a failure that the client sees without a proxy

    async def _stream(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        response: web.StreamResponse,
        seen: Seen,
        fault: Fault,
    ) -> web.StreamResponse:
        frozen = asyncio.Event()
        if seen.is_watch:
            self._running_watches.add(frozen)
        try:
            async for chunk in answer.content.iter_any():
                if frozen.is_set():
                    await asyncio.Event().wait()
                if fault.reset == "mid-body":
                    await response.write(chunk[: max(1, len(chunk) // 2)])
                    return self._abort(request)
                await response.write(chunk)
            await response.write_eof()
            return response
        finally:
            self._running_watches.discard(frozen)

    def _abort(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:  # otherwise the client has already disconnected
            request.transport.abort()
        return web.Response()


def _refusal(fault: Fault) -> web.Response:
    assert fault.status is not None
    reason = {409: "Conflict", 429: "TooManyRequests", 403: "Forbidden", 401: "Unauthorized"}.get(
        fault.status, "InternalError"
    )
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "injected",
        "reason": reason,
        "code": fault.status,
    }
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return web.json_response(status, status=fault.status, headers=headers)


async def _gone(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old",
    }
    await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
    await response.write_eof()
    return response


def watches(path_part: str = "") -> Callable[[Seen], bool]:
    return lambda seen: seen.is_watch and path_part in seen.path


def mutations(path_part: str = "") -> Callable[[Seen], bool]:
    return lambda seen: seen.is_mutating and path_part in seen.path


def everything(_: Seen) -> bool:
    return True


def but_leases(seen: Seen) -> bool:
    """All requests except those that maintain the operator's leadership."""
    return "/leases" not in seen.path


def nth_mutation(n: int) -> Callable[[Seen], bool]:
    """The n-th mutating call, counted from 1 since this matcher was created."""
    count = 0

    def matches(seen: Seen) -> bool:
        nonlocal count
        count += seen.is_mutating
        return seen.is_mutating and count == n

    return matches
