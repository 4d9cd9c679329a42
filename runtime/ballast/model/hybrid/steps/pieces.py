"""Work that is queued on a device in pieces, so that other work can be queued in between."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

Result = TypeVar("Result")
Key = TypeVar("Key")
Pieces = Generator[None, None, Result]
"""Queues one piece per advance, and returns a result that is valid after the device has computed all pieces."""


def within(active: Callable[[], AbstractContextManager[object]], pieces: Pieces[Result]) -> Pieces[Result]:
    """The same pieces. Each is queued in a new context of `active`, and none is open in between."""
    while True:
        with active():
            try:
                next(pieces)
            except StopIteration as end:
                result: Result = end.value
                return result
        yield


def drained(pieces: Pieces[Result], after_each: Callable[[], None] = lambda: None) -> Result:
    """Queue all pieces immediately; returns the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        after_each()


def interleaved(generators: Mapping[Key, Pieces[Result]]) -> Pieces[dict[Key, Result]]:
    """Queue a piece of each generator per advance, until all pieces are queued; returns the results by key."""
    results: dict[Key, Result] = {}
    while len(results) < len(generators):
        for key, pieces in generators.items():
            if key in results:
                continue
            try:
                next(pieces)
            except StopIteration as end:
                results[key] = end.value
        yield
    return results
