"""The tags of Qwen3-Coder's calls: where a value ends. The grammar of these calls has the same rules.

A value ends with `\\n</parameter>\\n`. It also ends where a tag opens an argument that may follow, after a closing tag
in any form or at the beginning of a line. The last value ends with the call: a closing tag without line breaks, and
`</function>`, are no part of it. A line break after the opening tag never is.
"""

from __future__ import annotations

import re

LONGEST_KEY = 256
MAX_BLANK = 20
"""Characters of white space between a closing tag and the next tag."""
KEY = rf"[^<>\n]{{1,{LONGEST_KEY}}}"
BLANK = rf"[ \t\r\n]{{0,{MAX_BLANK}}}"
ENDS_VALUE = "\n</parameter>\n"
BEFORE_NEXT = rf"(?:\n?</parameter>{BLANK}|\n)"
"""What precedes a tag that opens the next argument, with the end of a value."""
_END = re.compile(rf"{ENDS_VALUE}|{BEFORE_NEXT}<parameter=({KEY})>")
_LAST = re.compile(rf"(?:\n?</parameter>{BLANK}(?:</function>{BLANK})?|\n?</function>{BLANK}|\n)\Z")


def beginnings(text: str, least: int = 0) -> str:
    """A pattern of every beginning of `text` with at least this many characters, the whole included."""
    rest = text[least:]
    return re.escape(text[:least]) + "".join(f"(?:{re.escape(char)}" for char in rest) + ")?" * len(rest)


_PART = "|".join(
    (
        rf"<parameter=[^<>\n]{{0,{LONGEST_KEY}}}",
        rf"</function>{BLANK}",
        beginnings("<parameter="),
        beginnings("</function>"),
        beginnings("</parameter>"),
    )
)
_BEGUN = re.compile(rf"(?:\n?</parameter>{BLANK}|\n?)(?:{_PART})\Z")
_LONGEST_BEGUN = LONGEST_KEY + 2 * MAX_BLANK + 64
_KEY = re.compile(KEY)
_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_HAS_STRINGS = re.compile(r'\s*[\[{"]')
"""The beginning of JSON that may contain strings."""


def is_key(key: str) -> bool:
    """Whether a tag can say that its value is that of `key`."""
    return key == key.strip() and _KEY.fullmatch(key) is not None


def next_end(text: str, begin: int) -> re.Match[str] | None:
    """The next place from `begin` on at which a value may end. Its group is the key of the argument that follows."""
    return _END.search(text, begin)


def without_end(text: str) -> tuple[str, str]:
    """The last value of a call, and the tags after it."""
    found = _LAST.search(text)
    return (text, "") if found is None else (text[: found.start()], found[0])


def begun_at(text: str) -> int:
    """The index from which `text` may be part of tags that are not complete."""
    found = _BEGUN.search(text, max(0, len(text) - _LONGEST_BEGUN))
    return len(text) if found is None else found.start()


class StringScan:
    """Whether a JSON value continues within a string. Each character is scanned once, however many tags follow."""

    def __init__(self) -> None:
        self._end = self._num_quotes = 0

    def is_in_string(self, text: str, end: int) -> bool:
        """Whether JSON that begins with `text[:end]` continues within a string. `text` only grows between calls, `end`
        does not decrease, and no quotation mark is there."""
        self._num_quotes += sum(each[0] == '"' for each in _QUOTES.finditer(text, self._end, end))
        self._end = end
        return self._num_quotes % 2 == 1 and _HAS_STRINGS.match(text) is not None
