"""One HTTP connection: uvicorn's protocol with limits, so that each client costs little and no connection stays open
forever."""

from __future__ import annotations

import asyncio
import ssl
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ballast.errors import CapacityError
from ballast.server.http.error_response import http_error_reply
from ballast.server.http.half_closed import HalfClosed
from ballast.server.http.late_timer import LateTimer
from ballast.server.limits import ServerLimits
from ballast.wire.json_text import to_json

BODY_HEADERS = (b"content-length", b"transfer-encoding")

LINGER_S = 2.0
"""How long input of a rejected client is read and dropped. A client whose connection is reset while it sends may not
see the reply."""


class HttpConfig(uvicorn.Config):
    """uvicorn's configuration, with limits for each connection and a TLS context from the caller."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(app, http=Connection, **settings)
        self.limits = limits
        self.is_leaving = False
        """Whether the server is about to stop: each reply ends its connection, and requests on new ones are
        rejected."""
        self._tls = tls

    def load(self) -> None:
        """Load the configuration."""
        super().load()
        self.ssl = self._tls


class UnframedCycle(RequestResponseCycle):
    """A request of HTTP/1.0, which has no chunked encoding: a body without a length ends with the connection."""

    _unframed = False

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the response."""
        # No await between these lines and super().send: they prepare uvicorn's state for this message.
        while self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if message["type"] == "http.response.start":
            self._unframed = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._unframed:
                self.chunked_encoding = False
        elif self._unframed:
            self.expected_content_length = len(cast(bytes, message.get("body", b"")))
        await super().send(message)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits on request heads, silence, stalled readers and the number of connections, and with
    errors in the usual envelope.

    A request that arrives before the previous reply is complete (pipelining) is not answered; that reply closes the
    connection. uvicorn would stop reading instead, and would not notice that the client disconnects.
    """

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._has_come_late = config.is_leaving
        self._end_timer: LateTimer | None = None
        self._stall_timer: LateTimer | None = None
        self._num_unparsed = 0
        """Bytes since the parser last completed a head or a chunk of a body. It buffers an incomplete header."""
        self._ignores_input = False
        self._half_closed: HalfClosed | None = None

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """A client has connected."""
        super().connection_made(transport)
        limit = self._limits.max_connections
        if len(self.connections) > 2 * limit:
            transport.abort()
        elif len(self.connections) > limit:
            self._refuse(CapacityError("too many connections", status=503, code="too_many_connections"))
        else:
            self._end_timer = LateTimer(self._limits.head_timeout_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._half_closed is not None:
            self._half_closed.stop()
        self._stop_end_timer()
        self.resume_writing()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun or is in progress."""
        return not self._busy and not self._num_unparsed

    def end_with_reply(self) -> None:
        """Close after the reply in progress, if its head is not sent yet: the head announces it."""
        if self._busy and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio's own
        """The client has closed its sending half. Returns whether the connection stays open for a pending reply.

        It does not for a client of HTTP/1.0, which cannot be probed with an interim response before the reply, and over
        TLS, where both halves close together.
        """
        cycle = self.cycle
        if not self._busy or cycle.more_body or cycle.scope["http_version"] != "1.1" or self.scheme != "http":
            return False
        self._close_after_reply()
        self._half_closed = HalfClosed(
            self.loop, self.transport, lambda: not cycle.response_started, self._limits.probe_s
        )
        return True

    def data_received(self, data: bytes) -> None:
        """Data arrived from the client."""
        if self._ignores_input:
            return
        if not self._busy and self._end_timer is None:
            self._end_timer = LateTimer(self._limits.head_timeout_s, self.transport.abort)
        self._num_unparsed += len(data)
        super().data_received(data)
        if self._num_unparsed > self._limits.max_head_bytes and not self._ignores_input:
            limit = self._limits.max_head_bytes
            self._refuse(HTTPException(431, f"the request's line and headers are larger than {limit} bytes"))

    def on_headers_complete(self) -> None:
        """The parser has read a complete head."""
        self._num_unparsed = 0
        if self._busy or self._ignores_input:
            self._close_after_reply()
            return
        if self.parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            # The parser would treat the body as data of the other protocol.
            self._refuse(HTTPException(400, "this server supports only HTTP/1.1; omit the Upgrade header"))
            return
        if self._has_come_late and self.parser.get_method() == b"POST":
            self._refuse(CapacityError("the server is draining, try again later", status=503))
            return
        self._stop_end_timer()
        if b"://" in self.url:
            self._take_host_from_target()
        super().on_headers_complete()
        if cast(HttpConfig, self.config).is_leaving:
            self.cycle.keep_alive = False

    def _take_host_from_target(self) -> None:
        """A target with a host, as in requests to proxies, overrides the Host header (RFC 9112, section 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host is not None:
            name = b"[%b]" % target.host if b":" in target.host else target.host
            host = name if target.port is None else b"%b:%d" % (name, target.port)
            self.headers[:] = [(key, host if key == b"host" else value) for key, value in self.headers]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.__class__ = UnframedCycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """The parser has read a chunk of the body."""
        self._num_unparsed = 0
        if not self._ignores_input:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has read a complete request."""
        self._num_unparsed = 0
        if not self._ignores_input:
            super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = LateTimer(self._limits.stalled_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def send_400_response(self, msg: str) -> None:
        """The parser cannot read the input."""
        self._refuse(HTTPException(400, msg))

    def _unsupported_upgrade_warning(self) -> None:
        # The request is answered as if it had not asked for an upgrade. uvicorn's version logs advice to install
        # packages. The parser reads nothing more on this connection.
        self._close_after_reply()

    def _close_after_reply(self) -> None:
        """Close after the reply in progress. Further input is read and dropped, to notice when the client
        disconnects."""
        self._ignores_input = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _refuse(self, error: Exception) -> None:
        """Answer input that is not a valid request, unless a reply is in progress."""
        self._close_after_reply()
        if self._busy:
            if self.cycle.response_started or not self.cycle.more_body:
                return
            # The body of the request in progress will never be complete.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        reply = http_error_reply(error)
        body = to_json(reply.body)
        headers = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in {**reply.headers, **headers}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        self._stop_end_timer()
        self._end_timer = LateTimer(LINGER_S, self.transport.abort)

    def _stop_end_timer(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
