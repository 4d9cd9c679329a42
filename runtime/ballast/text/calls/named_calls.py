"""Reads calls that have no end mark, as Mistral writes them.

    CALL name SEPARATOR arguments …

Arguments are a JSON object, whose end is that of the call: text that follows is content. The separator may be missing.
Text that cannot be read as a call becomes content, unchanged. Missing arguments become `{}`.
"""

from __future__ import annotations

from ballast.families.marks import Mark
from ballast.text.calls.json_value import JsonValue
from ballast.text.calls.reader import NAME, BracketedCalls
from ballast.text.reply_parts import Part

_LONGEST_HEAD = 1024
"""Characters before the separator after which text is looked at whether it may still be a name."""


class NamedCalls(BracketedCalls):
    """The parser of one reply's calls."""

    def _begin(self) -> None:
        self._head = ""
        """Text before the separator."""
        self._is_separated = False
        self._blank_before = ""
        """White space between the separator and the arguments."""
        self._value: JsonValue | None = None

    def _inner_text(self, text: str) -> list[Part]:
        if self._value is not None:
            return self._more_arguments(text)
        if self._is_separated:
            begun = text.lstrip()
            self._blank_before += text[: len(text) - len(begun)]
            if not begun:
                return []
            return self._named(begun) if begun.startswith("{") else self._rejected(begun)
        head, brace, rest = text.partition("{")
        self._head += head
        if not brace and len(self._head) <= _LONGEST_HEAD:
            return []
        if NAME.fullmatch(self._head.strip()):
            return self._named(brace + rest) if brace else []
        return self._rejected(brace + rest)

    def _inner_mark(self, mark: Mark) -> list[Part]:
        if mark is not Mark.SEPARATOR or self._is_separated or self._value is not None:
            return []
        self._is_separated = NAME.fullmatch(self._head.strip()) is not None
        return [] if self._is_separated else self._rejected("")

    def _end(self) -> list[Part]:
        if self._value is not None:
            return []
        if self._is_separated:
            return [self._announced(self._head.strip()), *self._arguments("{}")]
        return self._as_content(self._head)

    def _end_early(self, *, is_cut: bool) -> list[Part]:
        return [] if is_cut else self._end()

    def _named(self, arguments: str) -> list[Part]:
        """The name is certain, and `arguments` begin."""
        self._value = JsonValue()
        return [self._announced(self._head.strip()), *self._more_arguments(arguments)]

    def _more_arguments(self, text: str) -> list[Part]:
        assert self._value is not None
        own = self._value.take(text)
        parts = self._arguments(text[:own])
        if not self._value.is_complete:
            return parts
        self._is_inside = False
        return [*parts, *self.text(text[own:])]

    def _rejected(self, rest: str) -> list[Part]:
        """This is no call: its text, then `rest`, is content."""
        self._is_inside = False
        return self.text(self._head + self._blank_before + rest)
