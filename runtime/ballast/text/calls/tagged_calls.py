"""Reads calls in tags that are spelled out between marks, as Qwen3-Coder writes them.

    CALL newline <function=name> newline <parameter=k> newline v newline </parameter> newline … </function> END_CALL

Values are bare text; their types are the schema's (`pairs`), and `tags` says where they end. A call of a declared
function may lack CALL: it is one if END_CALL or the end of the reply follows.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from ballast.text.calls.pairs import Pairs
from ballast.text.calls.parameters import Parameters
from ballast.text.calls.reader import NAME
from ballast.text.calls.spelled_tags import SpelledTags
from ballast.text.calls.tags import StringScan, beginnings, begun_at, next_end, without_end
from ballast.text.reply_parts import Part

_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_OPENS_VALUE = "<parameter="
_LONGEST_HEAD = 4096
"""Characters of a call in which its name, or of a value in which its key, is looked for."""
_AFTER_NAME = rf"\s{{0,64}}(?:{beginnings('<parameter=')}|{beginnings('</function>')})\Z"
_UNOPENED = re.compile(
    r"<function=(?P<name>[^<>\n]{1,256})>(?:\s{0,64}(?P<more><parameter=|</function>)|" + _AFTER_NAME + ")"
    rf"|<function=[^<>\n]{{0,256}}\Z|{beginnings('<function=', 1)}\Z"
)
_UNOPENED_IS_OVER = re.compile(r"(?:</parameter>|<function=[^<>\n]*>)\s*</function>\s*\S")
"""A text about calls continues after the function's closing tag."""


class _State(Enum):
    NAME = auto()
    PAIRS = auto()
    VALUE = auto()


class TaggedCalls(SpelledTags):
    """The parser of one reply's calls."""

    def unopened_at(self, text: str) -> int:
        """See `CallReader`."""
        for found in _UNOPENED.finditer(text) if self._functions else ():
            is_declared = found["name"] is None or found["name"] in self._functions
            if is_declared and not _UNOPENED_IS_OVER.search(text, found.start()):
                return found.start()
        return len(text)

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """See `CallReader`."""
        found = _UNOPENED.match(text)
        return found is not None and found["more"] is not None

    def _begin(self) -> None:
        super()._begin()
        self._state = _State.NAME
        self._parameters = Parameters()
        self._at_start = False
        """Whether nothing of the value has been passed on."""
        self._stray: list[str] = []
        """Text within the call that belongs to no tag."""

    def _is_in_value(self) -> bool:
        return self._state is _State.VALUE

    def _end(self) -> list[Part]:
        parts = self._read_all()
        if self._state is _State.NAME:
            return [*parts, *self._as_content(self._text)]
        if self._state is _State.VALUE:
            value, _ = without_end(self._text)
            parts += self._end_value(value, "")
        rest = "".join((*self._stray, self._text)).replace("</function>", "", 1).replace("</parameter>", "").strip()
        return [*parts, *self._arguments(self._pairs.end()), *self._as_content(rest)]

    def _end_early(self, *, is_cut: bool) -> list[Part]:
        parts = self._read_all()
        match self._state:
            case _State.NAME:
                return [*parts, *([] if is_cut else self._as_content(self._text))]
            case _State.PAIRS if is_cut and "</function>" not in self._text:
                rest = "".join((*self._stray, self._text[: begun_at(self._text)]))
                return [*parts, *self._as_content(rest.strip())]
            case _State.VALUE if is_cut or "</function>" not in without_end(self._text)[1]:
                parts += self._value(self._text[: begun_at(self._text)] if is_cut else self._text)
                return [*parts, *self._arguments(self._pairs.cut_value()), *self._as_content("".join(self._stray))]
            case _:
                return [*parts, *self._end()]

    def _read(self) -> list[Part] | None:
        match self._state:
            case _State.NAME:
                return self._read_name()
            case _State.PAIRS:
                return self._read_parameter()
            case _State.VALUE:
                return self._read_value()

    def _read_name(self) -> list[Part] | None:
        found = _FUNCTION.match(self._text, 0, _LONGEST_HEAD)
        if found is None or not NAME.fullmatch(found[1].strip()):
            return None
        name = found[1].strip()
        self._text, self._looked_at = self._text[found.end() :], 0
        self._state, self._parameters = _State.PAIRS, self._functions.get(name, Parameters())
        self._pairs = Pairs(self._parameters)
        return [self._announced(name)]

    def _read_parameter(self) -> list[Part] | None:
        at = self._text.find(_OPENS_VALUE, self._looked_at)
        if at < 0:
            self._looked_at = max(0, len(self._text) - len(_OPENS_VALUE) + 1)
            return None
        self._stray.append(self._text[:at].strip())
        self._text, self._looked_at = self._text[at:], 0
        if self._text.find(">", 0, _LONGEST_HEAD) < 0:
            return None
        found = _PARAMETER.match(self._text, 0, _LONGEST_HEAD)
        return None if found is None else self._begin_value(found[1].strip(), self._text[found.end() :])

    def _begin_value(self, key: str, rest: str) -> list[Part]:
        self._state, self._text, self._at_start, self._looked_at = _State.VALUE, rest, True, 0
        self._strings = StringScan()
        return self._arguments(self._pairs.begin_value(key))

    def _read_value(self) -> list[Part] | None:
        begin = self._looked_at
        while found := next_end(self._text, begin):
            if self._ends_value(found):
                value, rest = self._text[: found.start()], self._text[found.end() :]
                parts = self._end_value(value, rest)
                return parts if found[1] is None else [*parts, *self._begin_value(found[1].strip(), rest)]
            begin = found.start() + 1
        self._looked_at = max(begin, begun_at(self._text))
        return None

    def _ends_value(self, found: re.Match[str]) -> bool:
        if found[1] is None:
            return found.start() > 0 or not self._at_start
        if not self._parameters.may_begin(found[1].strip(), self._pairs.keys):
            return False
        return self._pairs.may_be_string or not self._strings.is_in_string(self._text, found.start())

    def _end_value(self, value: str, rest: str) -> list[Part]:
        self._state, self._text, self._looked_at = _State.PAIRS, rest, 0
        return [*self._value(value), *self._arguments(self._pairs.end_value())]

    def _value(self, text: str) -> list[Part]:
        if text and self._at_start:
            self._at_start, text = False, text.removeprefix("\n")
        return super()._value(text)
