"""Middleware around every request: an id, a log line, metrics, and a body limit.

Plain ASGI, so that a disconnect reaches the handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ballast.server.http.client_number import client_number, network_of
from ballast.server.http.error_response import error_response, http_error_reply
from ballast.server.http.late_timer import is_late
from ballast.server.requests.cancellation import ClientGoneError
from ballast.server.requests.record import Record
from ballast.server.telemetry.tracing import Tracer
from ballast.wire.body_size import too_large

log = logging.getLogger("ballast.access")

REQUEST_ID_HEADERS = ("X-Request-Id", "Request-Id")
"""The headers in which OpenAI's and Anthropic's clients expect the request id."""
IGNORED_FIELDS_HEADER = "X-Ballast-Ignored"
"""Lists the fields of the request's body that had no effect."""
MAX_TOKENS_HEADER = "X-Ballast-Max-Tokens"
"""The number of tokens that the request may generate, if it requested more than the server's limit."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

# Probes and scrapes arrive every few seconds. A 503 of /readyz is normal; a 503 of /livez is logged.
LOGGED_AT_DEBUG = frozenset(
    {
        *(("/livez", 200), ("/metrics", 200), ("/occupancy", 200), ("/load", 200), ("/slots", 200)),
        *((path, status) for path in ("/readyz", "/health", "/v1/health", "/ping") for status in (200, 503)),
    }
)

UNTRACED = frozenset(path for path, _ in LOGGED_AT_DEBUG)
TRACE_RESPONSE_HEADER = "traceresponse"
"""Tells a client without its own trace the id of the server's trace."""

DISCARD_TIMEOUT_S = 60.0
DISCARD_SILENCE_S = 5.0
DISCARD_BYTES = 4 << 30
"""How much of a too large body is read and dropped after the reply. A client that sends more, or for longer, may see a
connection reset instead of the reply."""


class RequestScope:
    """Gives every request its Record and id, and logs and counts how it ended."""

    def __init__(self, app: ASGIApp, ended: Callable[[Record], None], tracer: Tracer | None = None) -> None:
        """`ended` is called once per request, when its record is complete. `tracer`: creates its spans; None: no
        tracing."""
        self._app = app
        self._ended = ended
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Every request to the model is a POST. Probes, scrapes, model lists, page files and preflights are not, and
        # would dilute the fraction of failed requests.
        record = Record(
            _request_id(scope), client=client_number(network_of(scope)), is_counted=scope["method"] == "POST"
        )
        scope.setdefault("state", {})["record"] = record
        span = None if self._tracer is None or scope["path"] in UNTRACED else self._tracer.begin(Headers(scope=scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                for name in REQUEST_ID_HEADERS:
                    headers[name] = record.request_id
                if span is not None:
                    headers[TRACE_RESPONSE_HEADER] = span.to_header()
                if record.ignored:
                    headers[IGNORED_FIELDS_HEADER] = str(record.ignored)
                if record.lowered_max_tokens is not None:
                    headers[MAX_TOKENS_HEADER] = str(record.lowered_max_tokens)
            try:
                await send(message)
            except RuntimeError as error:
                # uvloop's message for a connection that has just closed, which uvicorn does not know yet.
                if "the handler is closed" not in str(error):
                    raise
                raise ClientGoneError from None

        try:
            await self._app(_as_routed(scope), receive, send_with_id)
        except ClientGoneError:
            record.outcome = "client_gone"
        except Exception:
            log.exception("request failed", extra={"request_id": record.request_id, "path": scope["path"]})
            record.outcome = "error"
        finally:
            record.outcome = record.outcome or _outcome(record.status)
            self._ended(record)
            if self._tracer is not None and span is not None:
                record.fields["trace_id"] = span.trace_id
                self._tracer.end(span, record, scope["method"])
            _log(scope, record)


class BodyLimit:
    """Rejects a body that is too large or too slow, also without a Content-Length."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, timeout_s: float, whole_timeout_s: float) -> None:
        """`timeout_s`: longest wait for the next chunk of the body; `whole_timeout_s`: for the whole body."""
        self._app = app
        self._timeout_s = timeout_s
        self._whole_timeout_s = whole_timeout_s
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes, complete, too_large = 0, False, False

        async def send_all(message: Message) -> None:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not (is_end and too_large) or complete:
                await send(message)
                return
            # The whole reply first: some clients read it while they send, others after they have sent everything. If
            # the connection is closed earlier, it is reset, and the reply is lost.
            await send({**message, "more_body": True})
            await self._discard(receive)
            await send({"type": "http.response.body", "body": b""})

        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            too_large = True
            response = error_response(http_error_reply(self._too_large()))
            response.headers["Connection"] = "close"
            await response(scope, receive, send_all)
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._whole_timeout_s

        async def receive_limited() -> Message:
            nonlocal num_bytes, complete, too_large, end
            if complete:
                return await receive()
            message: Message | None = None
            while message is None:
                left_s = max(0.0, end - loop.time())
                try:
                    async with asyncio.timeout(min(self._timeout_s, left_s)) as limit:
                        message = await receive()
                except TimeoutError:
                    if not is_late(limit.when(), self._timeout_s):
                        raise self._too_slow(is_silent=left_s >= self._timeout_s) from None
                    end = loop.time() + self._whole_timeout_s
            num_bytes += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if num_bytes > self._max_body_bytes:
                too_large = True
                raise self._too_large()
            return message

        await self._app(scope, receive_limited, send_all)

    async def _discard(self, receive: Receive) -> None:
        """Read and drop the rest of the body, within limits, until the client has sent it or disconnected."""
        num_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while num_bytes < DISCARD_BYTES:
                    async with asyncio.timeout(DISCARD_SILENCE_S):
                        message = await receive()
                    num_bytes += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break

    def _too_slow(self, *, is_silent: bool) -> HTTPException:
        late = f"the request's body did not arrive within {self._whole_timeout_s:g} s"
        silent = f"nothing of the request's body arrived for {self._timeout_s:g} s"
        return HTTPException(408, silent if is_silent else late, {"Connection": "close"})

    def _too_large(self) -> HTTPException:
        return HTTPException(413, too_large(self._max_body_bytes), {"Connection": "close"})


class RootPath:
    """Removes a proxy's prefix from the path, if the proxy has not done so."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and (scope["path"] + "/").startswith(self._prefix + "/"):
            scope = {**scope, "path": scope["path"][len(self._prefix) :] or "/"}
        await self._app(scope, receive, send)


def _as_routed(scope: Scope) -> Scope:
    """HEAD is routed as GET, and the connection omits the body. For any method, a path may end in slashes."""
    method, path = scope["method"], scope["path"].rstrip("/") or "/"
    return {**scope, "method": "GET" if method == "HEAD" else method, "path": path}


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id if it is safe to echo, otherwise a new id."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _outcome(status: int) -> str:
    if status == 0:
        return "client_gone"
    if status < 400:
        return "ok"
    if status in (429, 503):
        return "rejected"
    if status == 504:
        return "timeout"
    return "client_error" if status < 500 else "error"


def _log(scope: Scope, record: Record) -> None:
    log.log(
        logging.DEBUG if (scope["path"], record.status) in LOGGED_AT_DEBUG else logging.INFO,
        "request",
        extra={
            "request_id": record.request_id,
            "method": scope["method"],
            "path": scope["path"],
            "status": record.status,
            "outcome": record.outcome,
            "duration_s": round(time.monotonic() - record.started, 4),
            **record.fields,
            **({"ignored_fields": str(record.ignored)} if record.ignored else {}),
        },
    )
