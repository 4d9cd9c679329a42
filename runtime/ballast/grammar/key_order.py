"""Keys in any order, each at most once, and required keys at least once.

A rule of the grammar has 64 bits, one per used key (llguidance's parametric rules). Required keys have the first bits.
Optional keys without a bit may be repeated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The keys of one object or call."""

    required: tuple[str, ...]
    tracked: tuple[str, ...]
    """The keys that have a bit, `required` first."""

    @property
    def none_used(self) -> str:
        """Suffix of a rule's name before the first key."""
        return "::0x0" if self.tracked else ""

    @property
    def same(self) -> str:
        """Suffix of the name of a rule that inherits the keys used so far."""
        return "::_" if self.tracked else ""

    @property
    def all_given(self) -> str:
        """The condition of an alternative that ends the keys."""
        return f"%if is_ones([0:{len(self.required)}])" if self.required else ""

    def used(self, key: str) -> str:
        """Suffix of a rule's name after the use of `key`."""
        return f"::set_bit({self.tracked.index(key)})" if key in self.tracked else self.same

    def is_free(self, key: str) -> str:
        """The condition of an alternative that uses `key`."""
        return f"%if bit_clear({self.tracked.index(key)})" if key in self.tracked else ""
