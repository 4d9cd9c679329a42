"""Reads calls in tags that contain a mark, as DeepSeek V3.2 and, with tool_calls, V4 write them; | is the mark:

    <|function_calls> newline <|invoke name="f"> newline <|parameter name="k" string="true">v</|parameter> newline …
    </|invoke> newline … </|function_calls>

The tag defines whether a value is text or JSON. Invalid JSON becomes text; so does a value without a type in its tag,
unless it can be JSON. A value without an end of its own ends with its call. The second value of a name is dropped. Tags
may have more white space, single quotation marks and attributes in another order. Text that cannot be read as a call
becomes content, unchanged; marks are never shown. White space before a tag is no content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum, auto

from ballast.families.family import CallStyle
from ballast.families.marks import Mark
from ballast.text.calls.argument_values import as_json, types_of
from ballast.text.calls.reader import NAME, NewId
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, new_call_id

BLOCKS: Mapping[CallStyle, str] = {"dsml": "function_calls", "dsml_tools": "tool_calls"}
"""The name of the tag around all calls. Both are read in either style."""
_DOUBLE, _SINGLE = rf'"[^"\n{Mark.TAG}]*+', rf"'[^'\n{Mark.TAG}]*+"
_ATTRIBUTE = re.compile(rf"(\w++)\s*+=\s*+({_DOUBLE}\"|{_SINGLE}')")
_TAG = re.compile(rf"(</?)?{Mark.TAG}\s*+(\w++)((?:\s++\w++\s*+=\s*+(?:{_DOUBLE}\"|{_SINGLE}'))*+)\s*+>")
_TAG_SO_FAR = re.compile(rf"(?:</?)?{Mark.TAG}(?:[\w\s=]++|{_DOUBLE}\"|{_SINGLE}')*+(?:{_DOUBLE}|{_SINGLE})?")
_END_VALUE = f"</{Mark.TAG}"
_ENDS_VALUE = frozenset({"parameter", "invoke", *BLOCKS.values()})
_OPENING = re.compile(r"\n{0,2}<?\Z")
_LONGEST_TAG = 4096
"""Characters of a tag, beyond which it is none."""
_MAX_BLANK = 64
"""Characters of white space before a tag that belong to it; of more, the first are text."""
LONGEST_KEY = 1024
"""Characters of a key that is sure to fit into a tag."""
_NO_KEY = re.compile(f'["\\n{"".join(Mark)}]')


def is_key(key: str) -> bool:
    """Whether a tag can say that its value is that of `key`."""
    return len(key) <= LONGEST_KEY and not _NO_KEY.search(key)


class _State(Enum):
    BETWEEN = auto()
    """Before, after and between calls."""
    CALL = auto()
    """In a call, between its values."""
    VALUE = auto()


class DsmlCalls:
    """The parser of one reply's calls, from the first mark to the reply's end: after the tag that closes all of them,
    others and content may follow."""

    def __init__(self, new_id: NewId = new_call_id) -> None:
        self.num_calls = 0
        self.open = False
        self.is_framed = True
        self._new_id = new_id
        self._state = _State.BETWEEN
        self._text = ""
        """What is not read yet, with the marks."""
        self._keys: set[str] = set()
        self._is_text = False
        """Whether the value is text; otherwise it is JSON or, where it is none, text."""
        self._is_dropped = False
        self._value: list[str] = []
        """The value so far, where it is passed on as a whole."""
        self._foreign: list[str] = []
        """Text within the call that is no part of it."""

    def unopened_at(self, text: str) -> int:
        """See `CallReader`."""
        found = _OPENING.search(text)
        return len(text) if found is None else found.start()

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """See `CallReader`."""
        return False

    def text(self, text: str) -> list[Part]:
        """See `CallReader`."""
        self._text += text
        parts: list[Part] = []
        while self.open and (more := self._read()) is not None:
            parts += more
        return parts

    def mark(self, mark: Mark) -> list[Part]:
        """See `CallReader`."""
        if not self.open:
            self.open, self._state, self._text = True, _State.BETWEEN, ""
        return self.text(mark) if mark is Mark.TAG else []

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """See `CallReader`."""
        if not self.open:
            return []
        self.open = False
        rest, self._text = _without_tag(self._text) if is_cut else self._text, ""
        if is_cut and self._state is _State.CALL:
            return _content("".join(self._foreign) + rest)
        match self._state:
            case _State.BETWEEN:
                return _content(rest)
            case _State.CALL:
                return [*self._end_call(), *_content(rest)]
            case _State.VALUE:
                shown = rest.replace(Mark.TAG, "")
                value = self._take_value(shown) if self._is_text else "".join(self._value) + shown
                return [*self._arguments(value), *_content("".join(self._foreign))]

    def _read(self) -> list[Part] | None:
        """The parts of what comes next; None where it is not whole."""
        if self._state is _State.VALUE:
            return self._read_value()
        mark = self._text.find(Mark.TAG)
        end = len(self._text) if mark < 0 else mark
        begin = end - _begun(self._text, end)
        certain = max(len(self._text[:begin].rstrip()), begin - _MAX_BLANK)
        if certain > 0:
            return self._read_foreign(certain)
        if mark < 0:
            return None
        found = _TAG.match(self._text, begin, begin + _LONGEST_TAG)
        if found is not None:
            return self._read_between(found) if self._state is _State.BETWEEN else self._read_call(found)
        return None if _may_be_tag(self._text, begin) else self._read_foreign(mark + 1)

    def _read_between(self, found: re.Match[str]) -> list[Part] | None:
        """Read the tag that was found, before which there is but white space."""
        match found[1] == "</", found[2], _attributes(found):
            case _, name, _ if name in BLOCKS.values():
                self._take(found.end())
                return []
            case False, "invoke", {"name": name} if NAME.fullmatch(name.strip()):
                self._take(found.end())
                self.num_calls += 1
                self._state, self._keys = _State.CALL, set()
                return [CallBegin(self.num_calls - 1, name.strip(), self._new_id())]
            case _:
                return self._read_foreign(found.end())

    def _read_call(self, found: re.Match[str]) -> list[Part] | None:
        """As `_read_between`."""
        match found[1] == "</", found[2], _attributes(found):
            case False, "parameter", {"name": key, **others}:
                self._take(found.end())
                return self._begin_value(key, others.get("string"))
            case True, "invoke", _:
                self._take(found.end())
                return self._end_call()
            case _, name, attributes if name in BLOCKS.values() or (name == "invoke" and "name" in attributes):
                return self._end_call()  # its own end is missing
            case _:
                return self._read_foreign(found.end())

    def _read_foreign(self, end: int) -> list[Part]:
        """The text before `end` belongs to no call."""
        text = self._take(end).replace(Mark.TAG, "")
        if self._state is _State.CALL:
            self._foreign.append(text)
            return []
        return [Content(text)] if text else []

    def _take(self, end: int) -> str:
        text, self._text = self._text[:end], self._text[end:]
        return text

    def _begin_value(self, key: str, string_mark: str | None) -> list[Part]:
        self._state, self._value = _State.VALUE, []
        self._is_text = string_mark is not None and string_mark.lower() == "true"
        self._is_dropped = key in self._keys
        if self._is_dropped:
            return []
        begin = ", " if self._keys else "{"
        self._keys.add(key)
        return self._arguments(f"{begin}{json.dumps(key, ensure_ascii=False)}: " + ('"' if self._is_text else ""))

    def _read_value(self) -> list[Part] | None:
        begin = self._text.find(_END_VALUE)
        certain = begin if begin >= 0 else len(self._text) - _begun(self._text, len(self._text))
        if certain > 0:
            return self._arguments(self._take_value(self._take(certain)))
        if begin < 0:
            return None
        found = _TAG.match(self._text, 0, _LONGEST_TAG)
        if found is None and _may_be_tag(self._text, 0):
            return None
        if found is None or found[2] not in _ENDS_VALUE:
            return self._arguments(self._take_value(self._take(len(_END_VALUE))))
        if found[2] == "parameter":  # any other ends the call as well
            self._take(found.end())
        parts = self._arguments('"' if self._is_text else as_json("".join(self._value), types_of(None, "")))
        self._state, self._is_dropped = _State.CALL, False
        return parts

    def _take_value(self, text: str) -> str:
        """What of the value can be passed on."""
        text = text.replace(Mark.TAG, "")
        if self._is_text:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        self._value.append(text)
        return ""

    def _end_call(self) -> list[Part]:
        foreign, self._foreign, self._state = "".join(self._foreign), [], _State.BETWEEN
        return [*self._arguments("}" if self._keys else "{}"), *_content(foreign)]

    def _arguments(self, text: str) -> list[Part]:
        return [CallArguments(self.num_calls - 1, text)] if text and not self._is_dropped else []


def _attributes(tag: re.Match[str]) -> dict[str, str]:
    return {each[1]: each[2][1:-1] for each in _ATTRIBUTE.finditer(tag[3])}


def _may_be_tag(text: str, begin: int) -> bool:
    """Whether the text from `begin` on may become a tag with what follows."""
    return len(text) - begin < _LONGEST_TAG and _TAG_SO_FAR.fullmatch(text, begin) is not None


def _without_tag(text: str) -> str:
    """`text` without the tag at its end that is not complete."""
    mark = text.rfind(Mark.TAG)
    end = len(text) if mark < 0 else mark
    begin = end - _begun(text, end)
    return text[:begin] if mark < 0 or _may_be_tag(text, begin) else text


def _begun(text: str, end: int) -> int:
    """Characters at `end` that begin a tag if a mark follows."""
    return 2 if text.endswith("</", 0, end) else int(text.endswith("<", 0, end))


def _content(text: str) -> list[Part]:
    text = text.replace(Mark.TAG, "")
    return [Content(text)] if text.strip() else []
