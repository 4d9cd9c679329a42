"""Limits of time and size for clients and for the engine. They are not options, since nobody should need to change
them; tests use smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.engine.supervision import FATAL_SILENCE_S, STUCK_S


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server."""

    max_connections: int = 4096
    max_head_bytes: int = 64 << 10
    """Largest request line and headers together, and largest trailer of a chunked body."""
    head_timeout_s: float = 75.0
    """Longest wait for a whole request head. Longer than the 60 s for which proxies and clients commonly keep an idle
    connection, so that they close it first."""
    body_timeout_s: float = 60.0
    """Longest wait for the next part of a request's body."""
    whole_body_timeout_s: float = 300.0
    """Longest wait for a whole body, also for one that arrives steadily."""
    keep_alive_s: float = 15.0
    """A stream sends a comment after this long a silence. Proxies and clients give up after 30 or 60 s."""
    stalled_timeout_s: float = 60.0
    """A client that reads nothing for this long is disconnected."""
    probe_s: float = 2.0
    """How long a client that has closed its sending half waits for its reply before it is asked whether it still
    reads. So long, at most, a client that has gone is served."""
    max_silence_s: float = 30.0
    """After this long without progress although it has work, the engine counts as hung: /livez fails."""
    fatal_silence_s: float = FATAL_SILENCE_S
    """After this long it is declared dead, unless something else has restarted the process before."""
    leave_s: float = 1.0
    """How long a connection may be silent before it is closed once the server is told to stop. Another request over it
    is answered until then, and its reply ends the connection, so that the next goes elsewhere."""
    stuck_s: float = STUCK_S
    """How long the engine may take to end its step once the time to drain is over."""
    max_bodies: int = 64
    """Bound of memory for bodies, from their first byte until they are tokenised: this many of the largest size."""
