"""Handles a connection whose client has closed its sending half: the client may still read, or may be gone.

Both cases look the same, and a client that sends a request and then closes its half must get the reply. Only sending
data shows that a client is gone: its system answers with a reset.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients of HTTP/1.1 must accept it before the reply, and ignore it."""

CHECKS_A_PROBE = 8
MAX_PROBE_S = 60.0

_TCP_CLOSE = 7
"""The state of a connection after a reset (tcp_states.h)."""


class HalfClosed:
    """Watches such a connection and aborts it when the client is gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        is_silent: Callable[[], bool],
        probe_s: float,
    ) -> None:
        """`is_silent`: whether the reply has not begun. Then an interim response is sent after `probe_s`, and again at
        growing intervals, to find out whether the client still reads."""
        self._loop = loop
        self._transport = transport
        self._is_silent = is_silent
        self._check_s = probe_s / CHECKS_A_PROBE
        self._wait_s = probe_s
        self._next_probe = loop.time() + probe_s
        self._timer = loop.call_later(self._check_s, self._check)

    def stop(self) -> None:
        """Stop watching, because the connection is closed."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._transport.is_closing():
            return
        if _tcp_state(self._transport) == _TCP_CLOSE:
            self._transport.abort()
            return
        if self._is_silent() and self._loop.time() >= self._next_probe:
            self._transport.write(CONTINUE)
            self._wait_s = min(2 * self._wait_s, MAX_PROBE_S)
            self._next_probe = self._loop.time() + self._wait_s
        self._timer = self._loop.call_later(self._check_s, self._check)


def _tcp_state(transport: asyncio.Transport) -> int:
    connection: socket.socket = transport.get_extra_info("socket")
    # The first byte of struct tcp_info.
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
