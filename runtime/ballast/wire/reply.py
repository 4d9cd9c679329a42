"""The interface that converts a generation to one API's format, and its use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ballast.wire.piece import Piece, Whole
from ballast.wire.usage import Counts, Progress

MAX_INLINE_WEIGHT = 1000
"""Maximum number of tokens and alternatives that are written on the event loop: about 1 ms."""

Output = TypeVar("Output", Piece, Sequence[Whole])


class Reply(Protocol):
    """Converts a generation to one API's format: frames of a stream, or one body."""

    def opening(self, counts: Counts) -> bytes:
        """The first frames."""

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """The frames of a piece, without its finish reason."""

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """The frame with the progress of a prompt."""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The frames with a choice's finish reason."""

    def end(self, counts: Counts) -> bytes:
        """The last frames."""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last frames of a stream that failed. `body` is the error in OpenAI's envelope."""

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The body of a reply that is not streamed."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How the frames of a stream are sent."""

    media_type: str
    keep_alive: Callable[[], bytes]
    """A frame that clients skip, sent after a long time without output."""


EVENT_STREAM = Framing("text/event-stream; charset=utf-8", lambda: b": keep-alive\n\n")


async def written(write: Callable[[Output, Counts], bytes], output: Output, counts: Counts) -> bytes:
    """Call `write(output, counts)`, on another thread if the output is large."""
    weight = _weight(output) if isinstance(output, Piece) else sum(map(_weight, output))
    return write(output, counts) if weight <= MAX_INLINE_WEIGHT else await asyncio.to_thread(write, output, counts)


def _weight(output: Piece | Whole) -> int:
    """Number of tokens and alternatives to write, a measure of the work."""
    return (
        len(output.token_ids)
        + len(output.prompt_scores)
        + sum(1 + (len(token.scores.top) if token.scores else 0) for token in output.tokens)
    )
