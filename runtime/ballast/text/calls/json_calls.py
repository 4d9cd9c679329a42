"""Reads calls that are JSON between marks, as Qwen3 writes them.

    CALL newline {"name": "f", "arguments": {"a": 1}} newline END_CALL

Arguments are passed on as they arrive, unchanged; missing ones become `{}`. A call of a declared function may lack CALL
if END_CALL follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ballast.families.marks import Mark
from ballast.text.calls.json_value import JsonValue
from ballast.text.calls.reader import NAME, BracketedCalls, NewId
from ballast.text.calls.tags import beginnings
from ballast.text.reply_parts import Part, new_call_id

_QUOTED_NAME, _QUOTED_ARGUMENTS = '"name"', '"arguments"'
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:')
_BLANK = r"\s{0,20}"
_UNOPENED = re.compile(
    rf'\{{{_BLANK}(?:{beginnings(_QUOTED_NAME)}\Z|"name"{_BLANK}(?:\Z|:{_BLANK}(?:\Z|"[\w.:/-]{{0,256}}\Z|'
    rf'"(?P<name>[\w.:/-]{{1,256}})"{_BLANK}(?:\Z|,{_BLANK}(?:{beginnings(_QUOTED_ARGUMENTS)}\Z|'
    rf'"arguments"{_BLANK}(?:\Z|(?P<more>:)))))))'
)
_LONGEST_HEAD = 4096
"""Characters of a call in which its name is looked for before it has ended."""


class JsonCalls(BracketedCalls):
    """The parser of one reply's calls."""

    def __init__(self, new_id: NewId = new_call_id, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools` as in OpenAI's requests."""
        super().__init__(new_id)
        self._names = frozenset(tool["function"]["name"] for tool in tools)

    def unopened_at(self, text: str) -> int:
        """See `CallReader`."""
        found = (each for each in _UNOPENED.finditer(text) if each["name"] is None or each["name"] in self._names)
        first = next(found, None) if self._names else None
        return len(text) if first is None else first.start()

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """See `CallReader`."""
        found = _UNOPENED.match(text)
        return is_closed and found is not None and found["more"] is not None

    def _begin(self) -> None:
        self._text = ""
        """The call's text, until its name is known; then what follows the arguments."""
        self._value: JsonValue | None = None
        self._has_arguments = False

    def _inner_text(self, text: str) -> list[Part]:
        if self._value is not None:
            return self._more_arguments(text)
        looked_at = len(self._text)
        self._text += text
        if looked_at > _LONGEST_HEAD:
            return []
        head = _HEAD.match(self._text, 0, _LONGEST_HEAD)
        name = None if head is None else _unquoted(head[1])
        if head is None or name is None:
            return []
        rest, self._text = self._text[head.end() :], ""
        self._value = JsonValue()
        return [self._announced(name), *self._more_arguments(rest)]

    def _more_arguments(self, text: str) -> list[Part]:
        assert self._value is not None
        if not self._has_arguments:
            text = text.lstrip()
        own = self._value.take(text)
        self._has_arguments = self._has_arguments or own > 0
        self._text += text[own:]
        return self._arguments(text[:own])

    def _inner_mark(self, mark: Mark) -> list[Part]:
        return []

    def _end(self) -> list[Part]:
        if self._value is not None and not self._has_arguments:
            return [*self._arguments("{}"), *self._end_early(is_cut=False)]
        return self._end_early(is_cut=False)

    def _end_early(self, *, is_cut: bool) -> list[Part]:
        if self._value is None:
            return self._whole() or ([] if is_cut else self._as_content(self._text))
        return self._as_content(self._text.strip().removeprefix("}").strip())

    def _whole(self) -> list[Part]:
        """The call, from its whole text, with its keys in any order; nothing if it is not a call."""
        try:
            call = json.loads(self._text)
        except (ValueError, RecursionError):
            return []
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return []
        arguments = call.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [self._announced(name), *self._arguments(text or "{}")]


def _unquoted(name: str) -> str | None:
    """The function's name; None where it can be none."""
    try:
        text = json.loads(name)
    except ValueError:
        return None
    return text if isinstance(text, str) and NAME.fullmatch(text) else None
