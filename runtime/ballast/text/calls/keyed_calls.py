"""Reads calls of keys and values between marks, as GLM-4.5 and later write them.

    CALL name KEY k END_KEY VALUE v END_VALUE KEY … END_VALUE END_CALL

Values are bare text. Their types are the schema's (`argument_values`). A value that can only be a string is passed on
as it arrives. Arguments become one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from ballast.families.marks import Mark
from ballast.text.calls.argument_values import STRING, as_json, types_of
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
        functions = [tool["function"] for tool in tools]
        self._parameters = {function["name"]: function.get("parameters") for function in functions}

    def _begin(self) -> None:
        self._state = _State.NAME
        self._name = ""
        self._key: str | None = None
        """Of the pair whose value comes next."""
        self._value = ""
        """The value's text that is not passed on yet."""
        self._types: frozenset[str] = frozenset()
        self._num_pairs = 0
        self._stray = ""
        """Text within the call that is neither key nor value."""

    def _inner_text(self, text: str) -> list[Part]:
        match self._state:
            case _State.NAME:
                self._name += text
            case _State.KEY:
                self._key = (self._key or "") + text
            case _State.VALUE if self._types == {STRING}:
                return self._arguments(_escaped(text))
            case _State.VALUE:
                self._value += text
            case _:
                self._stray += text
        return []

    def _inner_mark(self, mark: Mark) -> list[Part]:
        match mark:
            case Mark.KEY:
                parts = self._end_value() if self._state is _State.VALUE else self._end_name()
                if self._state is not _State.BROKEN:
                    self._state, self._key = _State.KEY, ""
                return parts
            case Mark.END_KEY if self._state is _State.KEY:
                self._state = _State.PAIRS
            case Mark.VALUE if self._key is not None and self._state in (_State.KEY, _State.PAIRS):
                return self._begin_value(self._key.strip())
            case Mark.END_VALUE if self._state is _State.VALUE:
                return self._end_value()
            case _:
                pass
        return []

    def _end(self) -> list[Part]:
        parts = self._end_value() if self._state is _State.VALUE else self._end_name()
        if self._state is _State.BROKEN:
            return [*parts, *self._as_content(self._stray)]
        return [*parts, *self._arguments("}" if self._num_pairs else "{}"), *self._as_content(self._stray.strip())]

    def _cut(self) -> list[Part]:
        match self._state:
            case _State.NAME:
                return []
            case _State.VALUE:
                return self._arguments(self._value)  # what there is of it
            case _State.BROKEN:
                return self._as_content(self._stray)
            case _:
                return self._end()

    def _end_name(self) -> list[Part]:
        """The name is complete, if it was not before."""
        if self._state is not _State.NAME:
            return []
        name = self._name.strip()
        if NAME.fullmatch(name):
            self._state = _State.PAIRS
            return [self._announced(name)]
        self._state, self._stray = _State.BROKEN, self._name
        return []

    def _begin_value(self, key: str) -> list[Part]:
        self._state, self._key, self._value = _State.VALUE, None, ""
        self._types = types_of(self._parameters.get(self._name.strip()), key)
        begin = "{" if self._num_pairs == 0 else ", "
        self._num_pairs += 1
        quote = '"' if self._types == {STRING} else ""
        return self._arguments(f"{begin}{json.dumps(key, ensure_ascii=False)}: {quote}")

    def _end_value(self) -> list[Part]:
        self._state = _State.PAIRS
        is_string = self._types == {STRING}
        text, self._value = '"' if is_string else as_json(self._value, self._types), ""
        return self._arguments(text)


def _escaped(text: str) -> str:
    """`text` as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
