"""Reads calls in tags that are spelled out between marks, as Qwen3-Coder writes them.

    CALL newline <function=name> newline <parameter=k> newline v newline </parameter> newline … </function> END_CALL

Values are bare text; their types are the schema's (`pairs`). One line break after a value's opening tag and one before
its closing tag are no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from ballast.families.marks import Mark
from ballast.text.calls.pairs import Pairs, parameters_of
from ballast.text.calls.reader import NAME, BracketedCalls, NewId
from ballast.text.reply_parts import Part, new_call_id

_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>\n?")
_OPENS_VALUE = "<parameter="
_CLOSES_VALUE = "</parameter>"
_LONGEST_HEAD = 4096
"""Characters of a call in which its name is looked for before it has ended."""


class _State(Enum):
    NAME = auto()
    PAIRS = auto()
    VALUE = auto()


class TaggedCalls(BracketedCalls):
    """The parser of one reply's calls."""

    def __init__(self, new_id: NewId = new_call_id, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools` as in OpenAI's requests: their schemas say which values are strings."""
        super().__init__(new_id)
        self._parameters = parameters_of(tools)

    def _begin(self) -> None:
        self._state = _State.NAME
        self._text = ""
        """What is not read yet."""
        self._pairs = Pairs(None)
        self._stray = ""
        """Text within the call that belongs to no tag."""

    def _inner_mark(self, mark: Mark) -> list[Part]:
        return []

    def _inner_text(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        while (more := self._read(is_last=False)) is not None:
            parts += more
        return [*parts, *self._certain_value()]

    def _end(self) -> list[Part]:
        parts = self._rest()
        if self._state is _State.NAME:
            return [*parts, *self._as_content(self._text)]
        if self._state is _State.VALUE:
            parts += self._end_value(self._text)
            self._text = ""
        rest = f"{self._stray}{self._text}".replace("</function>", "", 1).strip()
        return [*parts, *self._arguments(self._pairs.end()), *self._as_content(rest)]

    def _cut(self) -> list[Part]:
        parts = self._rest()
        match self._state:
            case _State.NAME:
                return [*parts, *self._as_content(self._text)]
            case _State.VALUE:
                parts += self._arguments(self._pairs.value(self._text) + self._pairs.cut_value())
                return [*parts, *self._as_content(self._stray)]
            case _:
                return [*parts, *self._end()]

    def _rest(self) -> list[Part]:
        parts: list[Part] = []
        while (more := self._read(is_last=True)) is not None:
            parts += more
        return parts

    def _read(self, *, is_last: bool) -> list[Part] | None:
        """The parts of the next tag; None where it is not whole."""
        match self._state:
            case _State.NAME:
                return self._read_name()
            case _State.PAIRS:
                return self._read_parameter(is_last=is_last)
            case _State.VALUE:
                return self._read_value()

    def _read_name(self) -> list[Part] | None:
        found = _FUNCTION.match(self._text, 0, _LONGEST_HEAD)
        if found is None or not NAME.fullmatch(found[1].strip()):
            return None
        name = found[1].strip()
        self._text = self._text[found.end() :]
        self._state, self._pairs = _State.PAIRS, Pairs(self._parameters.get(name))
        return [self._announced(name)]

    def _read_parameter(self, *, is_last: bool) -> list[Part] | None:
        at = self._text.find(_OPENS_VALUE)
        if at < 0:
            return None
        self._stray += self._text[:at].strip()
        self._text = self._text[at:]
        found = _PARAMETER.match(self._text)
        if found is None:
            return None
        if found.end() == len(self._text) and not self._text.endswith("\n") and not is_last:
            return None  # the line break may come yet
        self._text, self._state = self._text[found.end() :], _State.VALUE
        return self._arguments(self._pairs.begin_value(found[1].strip()))

    def _read_value(self) -> list[Part] | None:
        value, closed, rest = self._text.partition(_CLOSES_VALUE)
        if not closed:
            return None
        self._text = rest
        return self._end_value(value)

    def _end_value(self, value: str) -> list[Part]:
        self._state = _State.PAIRS
        return self._arguments(self._pairs.value(value.removesuffix("\n")) + self._pairs.end_value())

    def _certain_value(self) -> list[Part]:
        """Pass on what can be no part of a line break and the closing tag."""
        if self._state is not _State.VALUE:
            return []
        held = _held(self._text)
        certain, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        return self._arguments(self._pairs.value(certain))


def _held(text: str) -> int:
    """The length of the longest end of `text` that may begin a line break and the closing tag."""
    end = f"\n{_CLOSES_VALUE}"
    begins = [length for length in range(1, len(end)) if text.endswith((end[:length], _CLOSES_VALUE[:length]))]
    return max(begins, default=0)
