"""How much, and for how long, the server bears with its clients and its engine. No options: nobody should need to turn
them, and tests bring smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

BODY_BYTES_PER_TOKEN = 32
"""Generous: a token of common text takes 4 bytes, and 24 where JSON spells Chinese as \\uXXXX."""

MIN_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server."""

    max_connections: int = 4096
    max_head_bytes: int = 64 << 10
    """Of a request's line and headers, and of a chunked body's trailer."""
    head_timeout_s: float = 75.0
    """For a connection to bring a whole request's head. Longer than the 60 s for which proxies and clients commonly
    keep an idle connection, so that they close it first."""
    body_timeout_s: float = 60.0
    """Longest wait for the next part of a request's body."""
    whole_body_timeout_s: float = 300.0
    """For a whole body, however steadily it trickles."""
    keep_alive_s: float = 15.0
    """A stream that has been silent for this long says that it lives. Proxies and clients give up after 30 or 60 s."""
    stalled_timeout_s: float = 60.0
    """A client that takes nothing for this long has gone, whatever its connection says."""
    max_silence_s: float = 30.0
    """An engine that has work and shows no progress for this long hangs."""
    fatal_silence_s: float = 120.0
    """One that hangs for this long is held for dead, where nobody has ended the process for its hanging before."""
    stuck_s: float = 10.0
    """What the engine gets to end its step, once the time to drain is over."""
    max_bodies: int = 64
    """The largest bodies that may be held at once, from the first byte until they are tokens."""


def default_body_bytes(max_model_tokens: int) -> int:
    """Largest request body, when nothing else is asked for: room for a prompt that fills the context."""
    return max(MIN_BODY_BYTES, max_model_tokens * BODY_BYTES_PER_TOKEN)
