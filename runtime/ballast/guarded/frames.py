"""Messages on a stream socket: the length, then JSON.

JSON both ways: what comes from a process that ran hostile input must not be able to make objects.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from ballast.awake_clock import AwakeClock

_LENGTH = struct.Struct("!Q")


def encode(message: Any) -> bytes:
    """The message, plain data, as bytes. Raises ValueError, TypeError or RecursionError for what JSON cannot hold."""
    # A text may hold unpaired surrogates; they arrive as they are.
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Any:
    """The inverse of `encode`."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def send(channel: socket.socket, data: bytes) -> None:
    """Write one frame. Raises OSError when the other side is gone, or does not read within the socket's timeout."""
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, max_bytes: int, timeout_s: float | None = None) -> bytes | None:
    """The next frame; None once the other side is gone.

    Raises TimeoutError if it is not whole after `timeout_s` seconds, ValueError for one that is too large.
    """
    patience = None if timeout_s is None else (AwakeClock.for_limit(timeout_s), timeout_s)
    head = _read(channel, _LENGTH.size, patience)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > max_bytes:
        raise ValueError(f"a frame of {length} bytes")
    return _read(channel, length, patience)


def _read(channel: socket.socket, length: int, patience: tuple[AwakeClock, float] | None) -> bytes | None:
    """`patience`: the clock of the wait, and its limit in seconds."""
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        try:
            if patience is not None:
                # Never 0: what is already there is read. Not long either, so that a pause of this process shows.
                channel.settimeout(max(0.001, min(patience[1] / 10, patience[1] - patience[0].now())))
            count = channel.recv_into(view[filled:])
        except TimeoutError:
            if patience is None or patience[0].now() >= patience[1]:
                raise
            continue
        if count == 0:
            return None
        filled += count
    return bytes(data)
