"""Reads calls in tags that are spelled out between marks, with values directly between their tags.

    MiniMax-M2:  CALL newline <invoke name="f"> newline <parameter name="k">v</parameter> newline … </invoke> … END_CALL
    MiMo-V2:     CALL newline <function=f> newline <parameter=k>v</parameter> newline … </function> newline END_CALL

Values are bare text; their types are the schema's (`pairs`). A value ends at `</parameter>` before another tag, so that
it may contain `</parameter>` elsewhere; one without an end of its own ends with its call. Tags may have more white
space, and MiniMax's single quotation marks. Text between the marks that belongs to no call is content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

from ballast.text.calls.pairs import Pairs
from ballast.text.calls.parameters import Parameters
from ballast.text.calls.reader import NAME, NewId
from ballast.text.calls.spelled_tags import SpelledTags
from ballast.text.calls.tags import BLANK, LONGEST_KEY, MAX_BLANK, StringScan, beginnings
from ballast.text.reply_parts import Part, new_call_id

_LONGEST_BEGUN = 96
_LONGEST_TAG = 1024
"""More than any tag of calls and values has, so that text after a `<` is not searched again and again."""
_NAME_CHARS = "{0,512}"
_SPACE = rf"[ \t]{{0,{MAX_BLANK}}}"


@dataclass(frozen=True)
class Spelling:
    """How tags that open a call or a value are written: `<call before NAME after`, `<parameter before KEY after`."""

    call: str
    before: str
    after: str
    named: str
    """A pattern of the tag from its word on, more lenient, with a group for the name in each of its forms."""

    def is_key(self, key: str) -> bool:
        """Whether a tag can say that its value is that of `key`."""
        is_quoted = '"' in self.before
        bars = set('\n<>"' if is_quoted else "\n<>")
        return 0 < len(key) <= LONGEST_KEY and key == key.strip() and bars.isdisjoint(key)

    @cached_property
    def opens_call(self) -> re.Pattern[str]:
        """The tag that opens a call."""
        return re.compile(f"<{self.call}{self.named}")

    @cached_property
    def tag(self) -> re.Pattern[str]:
        """The next tag within a call, without the tag of the next call."""
        return re.compile(f"(?:<parameter{self.named}|</{self.call}>|(?=<{self.call}{self.named}))")

    @cached_property
    def ends_value(self) -> re.Pattern[str]:
        """The end of a value within a call."""
        gap, call = self._gap, self.call
        return re.compile(
            rf"</parameter>{BLANK}(?=<parameter{gap}|</{call}>|<{call}{gap})|\n?(?=</{call}>{BLANK}<{call}{gap})"
        )

    @cached_property
    def last(self) -> re.Pattern[str]:
        """The end of a call's last value, at the end of the call."""
        call = self.call
        return re.compile(rf"(?:</parameter>{BLANK}(?:</{call}>{BLANK})?|\n?</{call}>{BLANK}|\n)\Z")

    @cached_property
    def begun(self) -> re.Pattern[str]:
        """Tags that are not complete at the end of a text."""
        call, next_call = self.call, beginnings(f"<{self.call}{self.before[0]}")
        opening = "|".join((beginnings(f"<parameter{self.before[0]}"), beginnings(f"</{call}>"), next_call))
        return re.compile(
            rf"(?:</parameter>{BLANK}(?:{opening})|{beginnings('</parameter>', 1)}"
            rf"|\n?</{call}>{BLANK}{next_call}|\n?{beginnings(f'</{call}>', 1)}|\n)\Z"
        )

    @property
    def _gap(self) -> str:
        """A pattern of what follows the word of an opening tag."""
        return r"[ \t]" if self.before[0] == " " else self.before[0]

    def begun_at(self, text: str) -> int:
        """The index from which `text` may be part of tags that are not complete."""
        found = self.begun.search(text, max(0, len(text) - _LONGEST_BEGUN))
        return len(text) if found is None else found.start()


INVOKE = Spelling(
    "invoke",
    ' name="',
    '">',
    rf"""[ \t]{_SPACE}name{_SPACE}={_SPACE}(?:"([^"\n<>]{_NAME_CHARS})"|'([^'\n<>]{_NAME_CHARS})'){_SPACE}>""",
)
"""MiniMax-M2's."""
FUNCTION = Spelling("function", "=", ">", rf"=([^\n<>]{_NAME_CHARS})>")
"""MiMo-V2's."""


class _State(Enum):
    BETWEEN = auto()
    """Before, between and after calls."""
    CALL = auto()
    """In a call, between its values."""
    VALUE = auto()


class InvokeCalls(SpelledTags):
    """The parser of one reply's calls."""

    def __init__(
        self,
        new_id: NewId = new_call_id,
        tools: Sequence[Mapping[str, Any]] = (),
        spelling: Spelling = INVOKE,
    ) -> None:
        super().__init__(new_id, tools)
        self._spelling = spelling
        self.is_framed = True

    def unopened_at(self, text: str) -> int:
        """See `CallReader`. A line break before MiniMax's calls belongs to them."""
        return len(text) - (self._spelling is INVOKE and text.endswith("\n"))

    def _begin(self) -> None:
        super()._begin()
        self._state = _State.BETWEEN
        self._stray: list[str] = []
        """Text within the call that belongs to no tag."""

    def _is_in_value(self) -> bool:
        return self._state is _State.VALUE

    def _end(self) -> list[Part]:
        parts = self._read_all()
        if self._state is _State.VALUE:
            found = self._spelling.last.search(self._text)
            value = self._text if found is None else self._text[: found.start()]
            parts += [*self._arguments(self._pairs.value(value)), *self._arguments(self._pairs.end_value())]
            self._text = ""
        if self._state is not _State.BETWEEN:
            self._stray.append(self._text)
            self._text = ""
            parts += self._end_call()
        return [*parts, *self._as_content(self._text.strip())]

    def _end_early(self, *, is_cut: bool) -> list[Part]:
        parts = self._read_all()
        if not is_cut:
            return [*parts, *self._end()]
        match self._state:
            case _State.BETWEEN:
                begun = self._text.rfind("<")
                return [*parts, *self._as_content((self._text[:begun] if begun >= 0 else self._text).strip())]
            case _State.CALL:
                return [*parts, *self._as_content("".join(self._stray).strip())]
            case _State.VALUE:
                parts += self._arguments(self._pairs.value(self._text[: self._spelling.begun_at(self._text)]))
                return [
                    *parts,
                    *self._arguments(self._pairs.cut_value()),
                    *self._as_content("".join(self._stray).strip()),
                ]

    def _read(self) -> list[Part] | None:
        match self._state:
            case _State.BETWEEN:
                return self._read_invoke()
            case _State.CALL:
                return self._read_tag()
            case _State.VALUE:
                return self._read_value()

    def _read_invoke(self) -> list[Part] | None:
        for found in self._spelling.opens_call.finditer(self._text, self._looked_at):
            name = _named(found).strip()
            if NAME.fullmatch(name):
                before, self._text = self._text[: found.start()], self._text[found.end() :]
                self._state, self._pairs = _State.CALL, Pairs(self._functions.get(name, Parameters()))
                self._looked_at = 0
                return [*self._as_content(before.strip()), self._announced(name)]
        self._looked_at = max(self._looked_at, _last_tag(self._text))
        return None

    def _read_tag(self) -> list[Part] | None:
        found = self._spelling.tag.search(self._text)
        if found is None:
            begun = _last_tag(self._text)
            self._stray.append(self._text[:begun])
            self._text = self._text[begun:]
            return None
        self._stray.append(self._text[: found.start()])
        self._text, self._looked_at = self._text[found.end() :], 0
        if not found[0].startswith("<parameter"):  # the call ends, by its own tag or because another begins
            return self._end_call()
        self._state, self._strings = _State.VALUE, StringScan()
        return self._arguments(self._pairs.begin_value(_named(found).strip()))

    def _end_call(self) -> list[Part]:
        stray, self._stray = "".join(self._stray), []
        self._state, self._looked_at = _State.BETWEEN, 0
        return [*self._arguments(self._pairs.end()), *self._as_content(stray.strip())]

    def _read_value(self) -> list[Part] | None:
        begin = self._looked_at
        while found := self._spelling.ends_value.search(self._text, begin):
            if self._pairs.may_be_string or not self._strings.is_in_string(self._text, found.start()):
                value, self._text = self._text[: found.start()], self._text[found.end() :]
                self._state = _State.CALL
                return [*self._arguments(self._pairs.value(value)), *self._arguments(self._pairs.end_value())]
            begin = found.start() + 1
        self._looked_at = max(begin, self._spelling.begun_at(self._text))
        return None


def _last_tag(text: str) -> int:
    """The index from which `text` may be part of a tag that is not complete: a tag has one `<`."""
    begun = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    return len(text) if begun < 0 else begun


def _named(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group is not None), "")
