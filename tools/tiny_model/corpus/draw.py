"""Seeded choice, and the split between training and evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")

HELD_OUT_SHARE = 10
"""One key in this number is kept for the evaluation."""


class Draw:
    """A source of choices for one side of the split: `exam` draws only items that training never sees.

    With `new_words`, requests also use wordings that training never uses. With `new_tools`, they are for tools whose
    names training never uses.
    """

    def __init__(self, seed: int, *, exam: bool = False, new_words: bool = False, new_tools: bool = False) -> None:
        self.random = random.Random(seed)
        self.exam, self.new_words, self.new_tools = exam, new_words, new_tools

    def pick(self, items: Sequence[T]) -> T:
        return self.random.choice(items)

    def wording(self, ways: tuple[str, ...]) -> str:
        """One way to say something. If there are three or more, some are kept for `new_words`."""
        trained, kept = _wordings(ways)
        return self.pick(kept if self.new_words and kept else trained)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def whole(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def digits(self, most: int) -> int:
        """An integer of 1 to `most` digits. Every length is equally likely."""
        size = self.whole(1, most)
        return self.whole(10 ** (size - 1) if size > 1 else 0, 10**size - 1)

    def some(self, items: Sequence[T], low: int, high: int) -> list[T]:
        return self.random.sample(items, min(len(items), self.whole(low, high)))

    def allowed(self, *key: object) -> bool:
        """Whether the item of `key` is on this side of the split."""
        return is_held_out(*key) == self.exam

    def allowed_tool(self, name: str) -> bool:
        """Whether a tool of this name may be drawn."""
        return is_held_out("tool", name) == self.new_tools

    def side(self, items: Sequence[str]) -> list[str]:
        """The `items` on this side of the split."""
        return [item for item in items if self.allowed(item)]


@cache
def _wordings(ways: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kept = ways[2::8]
    return tuple(way for way in ways if way not in kept), kept


def is_held_out(*key: object) -> bool:
    """Whether training must not see it."""
    return zlib.crc32("\x1f".join(map(str, key)).encode()) % HELD_OUT_SHARE == 0
