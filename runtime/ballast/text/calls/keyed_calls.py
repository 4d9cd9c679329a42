"""Reads calls of keys and values between marks, as GLM-4.5 and later, and Hunyuan 3, write them.

    GLM:        CALL name KEY k END_KEY VALUE v END_VALUE KEY … END_VALUE END_CALL
    Hunyuan 3:  CALLS CALL name SEPARATOR KEY k END_KEY VALUE v END_VALUE … END_CALL … END_CALLS

Values are bare text; their types are the schema's (`pairs`). A key without a value is content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from ballast.families.marks import Mark
from ballast.text.calls.pairs import Pairs
from ballast.text.calls.parameters import Parameters, parameters_of
from ballast.text.calls.reader import NAME, BracketedCalls, NewId
from ballast.text.reply_parts import Part, new_call_id


class _State(Enum):
    NAME = auto()
    PAIRS = auto()
    """Between pairs, and between a key and its value."""
    KEY = auto()
    VALUE = auto()
    BROKEN = auto()
    """In text between call marks that is not a call."""


class KeyedCalls(BracketedCalls):
    """The parser of one reply's calls."""

    def __init__(self, new_id: NewId = new_call_id, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools` as in OpenAI's requests: their schemas say which values are strings."""
        super().__init__(new_id)
        self._functions = parameters_of(tools)

    def _begin(self) -> None:
        self._state = _State.NAME
        self._name = ""
        self._key: str | None = None
        """Of the pair whose value comes next."""
        self._pairs = Pairs(Parameters())
        self._stray = ""
        """Text within the call that is neither key nor value."""

    def _inner_text(self, text: str) -> list[Part]:
        match self._state:
            case _State.NAME:
                self._name += text
            case _State.KEY:
                self._key = (self._key or "") + text
            case _State.VALUE:
                return self._arguments(self._pairs.value(text))
            case _:
                self._stray += text
        return []

    def _inner_mark(self, mark: Mark) -> list[Part]:
        match mark:
            case Mark.SEPARATOR:
                return self._end_part() if self._state is _State.NAME else []
            case Mark.KEY:
                parts = self._end_part()
                self._drop_key()
                if self._state is not _State.BROKEN:
                    self._state, self._key = _State.KEY, ""
                return parts
            case Mark.END_KEY if self._state is _State.KEY:
                self._state = _State.PAIRS
            case Mark.VALUE if self._key is not None and self._state in (_State.KEY, _State.PAIRS):
                key, self._key, self._state = self._key.strip(), None, _State.VALUE
                return self._arguments(self._pairs.begin_value(key))
            case Mark.END_VALUE if self._state is _State.VALUE:
                return self._end_part()
            case _:
                pass
        return []

    def _end(self) -> list[Part]:
        parts = self._end_part()
        self._drop_key()
        if self._state is _State.BROKEN:
            return [*parts, *self._as_content(self._stray)]
        return [*parts, *self._arguments(self._pairs.end()), *self._as_content(self._stray.strip())]

    def _end_early(self, *, is_cut: bool) -> list[Part]:
        match self._state:
            case _State.NAME:
                return [] if is_cut else self._as_content(self._name)
            case _State.KEY | _State.PAIRS if is_cut:
                return self._as_content(self._stray.strip())
            case _State.VALUE:
                return [*self._arguments(self._pairs.cut_value()), *self._as_content(self._stray.strip())]
            case _State.BROKEN:
                return self._as_content(self._stray)
            case _:
                return self._end()

    def _drop_key(self) -> None:
        """The key, if there is one, gets no value any more."""
        self._stray, self._key = self._stray + (self._key or ""), None

    def _end_part(self) -> list[Part]:
        """The name or the value is complete, if one was not before."""
        match self._state:
            case _State.VALUE:
                self._state = _State.PAIRS
                return self._arguments(self._pairs.end_value())
            case _State.NAME:
                name = self._name.strip()
                if NAME.fullmatch(name):
                    self._state, self._pairs = _State.PAIRS, Pairs(self._functions.get(name, Parameters()))
                    return [self._announced(name)]
                self._state, self._stray = _State.BROKEN, self._name
        return []
