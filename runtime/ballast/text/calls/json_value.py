"""Finds where a JSON value ends while its text arrives."""

from __future__ import annotations

_OPENS, _CLOSES = frozenset("{["), frozenset("}]")
_NO_VALUE = frozenset(",}]")
_AFTER_SCALAR = frozenset(",}] \t\r\n")


class JsonValue:
    """One value. Its text is not checked: only brackets and strings are counted."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._begun = False
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """How many of the next characters belong to the value; fewer than all once it is complete. White space before
        it counts."""
        if self.is_complete:
            return 0
        for at, char in enumerate(text):
            if self._depth == 0 and not self._in_string and char in (_AFTER_SCALAR if self._begun else _NO_VALUE):
                self.is_complete = True
                return at
            if self._ends_with(char):
                self.is_complete = True
                return at + 1
        return len(text)

    def _ends_with(self, char: str) -> bool:
        if self._in_string:
            return self._string(char)
        return not char.isspace() and self._outside(char)

    def _string(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            return self._depth == 0
        return False

    def _outside(self, char: str) -> bool:
        self._begun = True
        if char == '"':
            self._in_string = True
        elif char in _OPENS:
            self._depth += 1
        elif char in _CLOSES:
            self._depth -= 1
            return self._depth <= 0
        return False
