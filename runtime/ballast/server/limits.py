"""Limits of time and size for clients and for the engine. They are not options, because users should not need to change
them; tests use smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.engine.supervision import FATAL_SILENCE_S, STUCK_S


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server."""

    max_connections: int = 4096
    max_head_bytes: int = 64 << 10
    """Largest request line and headers together, and largest trailer of a chunked body."""
    head_timeout_s: float = 75.0
    """Longest wait for a whole request head. Longer than the 60 s for which proxies and clients commonly keep an idle
    connection, so that they close it first."""
    body_timeout_s: float = 60.0
    """Longest wait for the next chunk of a request's body."""
    whole_body_timeout_s: float = 300.0
    """Longest wait for a whole body, even if it arrives steadily."""
    keep_alive_s: float = 15.0
    """A stream sends a comment after this much silence. Proxies and clients time out after 30 or 60 s."""
    stalled_timeout_s: float = 60.0
    """A client that reads nothing for this long is disconnected."""
    probe_s: float = 2.0
    """How long a client that has closed its sending half waits for its reply before the server probes whether it still
    reads. A client that is gone is served for at most this long."""
    max_silence_s: float = 30.0
    """After this long without progress although it has work, the engine counts as hung: /livez fails."""
    fatal_silence_s: float = FATAL_SILENCE_S
    """After this long it is declared dead, unless the process was restarted before."""
    leave_s: float = 1.0
    """How long a connection may be silent before it is closed when the server stops. Until then, another request over
    it is answered, and its reply ends the connection, so that the client's next request goes elsewhere."""
    stuck_s: float = STUCK_S
    """How long the engine may take to end its step after the drain timeout."""
    max_bodies: int = 64
    """Memory limit for bodies until they are tokenised, in bodies of the largest size."""
