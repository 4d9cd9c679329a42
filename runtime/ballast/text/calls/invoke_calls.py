"""Reads calls in invoke tags that are spelled out between marks, as MiniMax-M2 writes them.

    CALL newline <invoke name="f"> newline <parameter name="k">v</parameter> newline … </invoke> newline … END_CALL

Values are bare text; their types are the schema's (`pairs`). A value ends at `</parameter>` before another tag, so that
it may contain `</parameter>` elsewhere; one without an end of its own ends with its call. Tags may have more white
space and single quotation marks. Text between the marks that belongs to no call is content.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from ballast.text.calls.pairs import Pairs
from ballast.text.calls.parameters import Parameters
from ballast.text.calls.reader import NAME
from ballast.text.calls.spelled_tags import SpelledTags
from ballast.text.calls.tags import BLANK, LONGEST_KEY, beginnings, is_in_string
from ballast.text.reply_parts import Part

_NAMED = r"""[ \t]+name[ \t]*=[ \t]*(?:"([^"\n<>]*)"|'([^'\n<>]*)')[ \t]*>"""
_INVOKE = re.compile(f"<invoke{_NAMED}")
_TAG = re.compile(f"(?:<parameter{_NAMED}|(</invoke>)|(?=<invoke{_NAMED}))")
_ENDS_VALUE = re.compile(
    rf"</parameter>{BLANK}(?=<parameter[ \t]|</invoke>|<invoke[ \t])|\n?(?=</invoke>{BLANK}<invoke[ \t])"
)
_LAST = re.compile(rf"(?:</parameter>{BLANK}(?:</invoke>{BLANK})?|\n?</invoke>{BLANK}|\n)\Z")
_OPENING = "|".join(beginnings(tag) for tag in ("<parameter ", "</invoke>", "<invoke "))
_BEGUN = re.compile(
    rf"(?:</parameter>{BLANK}(?:{_OPENING})|{beginnings('</parameter>', 1)}"
    rf"|\n?</invoke>{BLANK}{beginnings('<invoke ')}|\n?{beginnings('</invoke>', 1)}|\n)\Z"
)
_LONGEST_BEGUN = 96
_NO_KEY = re.compile('["\n<>]')


def is_key(key: str) -> bool:
    """Whether a tag can say that its value is that of `key`."""
    return 0 < len(key) <= LONGEST_KEY and key == key.strip() and not _NO_KEY.search(key)


class _State(Enum):
    BETWEEN = auto()
    """Before, between and after calls."""
    CALL = auto()
    """In a call, between its values."""
    VALUE = auto()


class InvokeCalls(SpelledTags):
    """The parser of one reply's calls."""

    def unopened_at(self, text: str) -> int:
        """See `CallReader`. A line break before calls belongs to them."""
        return len(text) - text.endswith("\n")

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
            found = _LAST.search(self._text)
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
                parts += self._arguments(self._pairs.value(self._text[: _begun_at(self._text)]))
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
        for found in _INVOKE.finditer(self._text, self._looked_at):
            name = _named(found).strip()
            if NAME.fullmatch(name):
                before, self._text = self._text[: found.start()], self._text[found.end() :]
                self._state, self._pairs = _State.CALL, Pairs(self._functions.get(name, Parameters()))
                self._looked_at = 0
                return [*self._as_content(before.strip()), self._announced(name)]
        self._looked_at = max(self._looked_at, _last_tag(self._text))
        return None

    def _read_tag(self) -> list[Part] | None:
        found = _TAG.search(self._text)
        if found is None:
            begun = _last_tag(self._text)
            self._stray.append(self._text[:begun])
            self._text = self._text[begun:]
            return None
        self._stray.append(self._text[: found.start()])
        self._text, self._looked_at = self._text[found.end() :], 0
        if found[1] is None and found[2] is None:  # the call ends, by its own tag or because another begins
            return self._end_call()
        self._state = _State.VALUE
        return self._arguments(self._pairs.begin_value(_named(found).strip()))

    def _end_call(self) -> list[Part]:
        stray, self._stray = "".join(self._stray), []
        self._state, self._looked_at = _State.BETWEEN, 0
        return [*self._arguments(self._pairs.end()), *self._as_content(stray.strip())]

    def _read_value(self) -> list[Part] | None:
        begin = self._looked_at
        while found := _ENDS_VALUE.search(self._text, begin):
            if self._pairs.may_be_string or not is_in_string(self._text[: found.start()]):
                value, self._text = self._text[: found.start()], self._text[found.end() :]
                self._state = _State.CALL
                return [*self._arguments(self._pairs.value(value)), *self._arguments(self._pairs.end_value())]
            begin = found.start() + 1
        self._looked_at = max(begin, _begun_at(self._text))
        return None


def _last_tag(text: str) -> int:
    """The index from which `text` may be part of a tag that is not complete: a tag has one `<`."""
    begun = text.rfind("<")
    return len(text) if begun < 0 else begun


def _named(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group is not None), "")


def _begun_at(text: str) -> int:
    """The index from which `text` may be part of tags that are not complete."""
    found = _BEGUN.search(text, max(0, len(text) - _LONGEST_BEGUN))
    return len(text) if found is None else found.start()
