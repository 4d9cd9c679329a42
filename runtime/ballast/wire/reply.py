"""The interface of what writes a generation in one API's format, and how it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ballast.wire.piece import Piece, Whole
from ballast.wire.usage import Counts, Progress

QUICK_WEIGHT = 1000
"""Most tokens and alternatives that are written on the event loop itself: about a millisecond's work."""

Output = TypeVar("Output", Piece, Sequence[Whole])


class Reply(Protocol):
    """Writes a generation in one API's format: as frames of a stream, or as one body."""

    def opening(self, counts: Counts) -> bytes:
        """The first frames."""

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """The frames of a piece, without its finish reason."""

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """The frame with the progress of a prompt."""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The frames that say why a choice ended."""

    def end(self, counts: Counts) -> bytes:
        """The last frames."""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last frames of a stream that failed. `body` is the error in OpenAI's envelope."""

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The body of a reply that is not streamed."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How frames of a stream are sent."""

    media_type: str
    keep_alive: Callable[[], bytes]
    """A frame that clients skip, for a stream that has been silent for long."""


EVENT_STREAM = Framing("text/event-stream; charset=utf-8", lambda: b": keep-alive\n\n")


async def written(write: Callable[[Output, Counts], bytes], output: Output, counts: Counts) -> bytes:
    """`write(output, counts)`, on another thread if there is much to write."""
    weight = _weight(output) if isinstance(output, Piece) else sum(map(_weight, output))
    return write(output, counts) if weight <= QUICK_WEIGHT else await asyncio.to_thread(write, output, counts)


def _weight(output: Piece | Whole) -> int:
    """Tokens and alternatives to write: roughly the work that it takes."""
    return (
        len(output.token_ids)
        + len(output.prompt_scores)
        + sum(1 + (len(token.scores.top) if token.scores else 0) for token in output.tokens)
    )
