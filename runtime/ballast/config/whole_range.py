"""A range of whole numbers, written LOW..HIGH."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"(-?[0-9]{1,10})\.\.(-?[0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class WholeRange:
    """The whole numbers from `low` to `high`, inclusive."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> WholeRange:
        """The range from text such as LOW..HIGH. Raises ValueError."""
        found = _RANGE.fullmatch(text)
        if found is None or not -(2**31) <= int(found[1]) <= int(found[2]) < 2**31:
            raise ValueError("expected LOW..HIGH, within 32 bits")
        return cls(int(found[1]), int(found[2]))

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def nearest(self, number: int) -> int:
        """The number in the range nearest to `number`."""
        return min(max(self.low, number), self.high)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"
