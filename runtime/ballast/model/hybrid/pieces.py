"""Work that is queued on a device in pieces, so that others get their turn on the host in between."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
Pieces = Generator[None, None, Result]
"""Queues a piece each time that it is advanced, and returns a result that is there once all of them are computed."""


def drained(pieces: Pieces[Result], after_each: Callable[[], None] = lambda: None) -> Result:
    """The result, with all chunks queued immediately."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        after_each()
