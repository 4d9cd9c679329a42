"""The kinds of options: how their text is parsed, and which values are in range."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ballast.config.whole_range import WholeRange

_LARGEST = 2**62
"""Largest value of numbers without another limit, so that arithmetic with them fits 64 bits."""
_LONGEST_S = 10**9


@dataclass(frozen=True, slots=True)
class Kind:
    """Parses, checks and formats an option's value."""

    allowed: str
    """What is allowed, for error messages: "a whole number, at least 1"."""
    metavar: str
    parse: Callable[[str], Any]
    """Raises ValueError for text that is not allowed."""
    accepts: Callable[[Any], bool] = lambda _: True
    """Whether a parsed value is in range."""
    repeatable: bool = False
    flag: bool = False
    listed: bool = False
    """Whether a list in a file stands for its values separated by commas."""
    show: Callable[[Any], str] = str
    """Formats a value for messages."""


def whole(minimum: int, maximum: int | None = None, *, auto: bool = False) -> Kind:
    """A whole number. With `auto`, the word "auto" stands for None."""
    upper = "" if maximum is None else f" and at most {maximum}"
    most = _LARGEST if maximum is None else maximum
    return Kind(
        f"{'auto, or ' if auto else ''}a whole number, at least {minimum}{upper}",
        "auto|N" if auto else "N",
        lambda text: None if auto and text == "auto" else int(text),
        lambda value: (value is None and auto) or (isinstance(value, int) and minimum <= value <= most),
    )


def whole_range() -> Kind:
    """A range of whole numbers."""
    return Kind("two whole numbers as LOW..HIGH, such as -5..5", "LOW..HIGH", WholeRange.parse)


def share() -> Kind:
    """A fraction from 0 to 1; the word "auto" stands for None."""
    return Kind(
        "auto, or a number from 0 to 1",
        "auto|S",
        lambda text: None if text == "auto" else float(text),
        lambda value: value is None or 0 <= value <= 1,
    )


def on_off() -> Kind:
    """On or off."""
    values = {"on": True, "off": False}
    names = {value: name for name, value in values.items()}
    return Kind("on or off", "on|off", values.__getitem__, lambda value: value in names, show=names.__getitem__)


def fraction() -> Kind:
    """A number from 0 to 1."""
    return Kind("a number from 0 to 1", "SHARE", float, lambda value: 0 <= value <= 1)


def seconds(*, zero: str = "") -> Kind:
    """A duration in seconds. `zero` says what 0 means."""
    return Kind(
        f"a number of seconds, at least 0 and at most {_LONGEST_S}{f'; 0: {zero}' if zero else ''}",
        "S",
        float,
        lambda value: value is not None and 0 <= value <= _LONGEST_S,
    )


def one_of(*choices: Any) -> Kind:
    """One of a few values, all of one type."""
    convert = type(choices[0])
    return Kind(
        f"one of {', '.join(map(str, choices))}", "|".join(map(str, choices)), convert, lambda value: value in choices
    )


def text(allowed: str, metavar: str, pattern: str = r".+", *, repeatable: bool = False, listed: bool = False) -> Kind:
    """Text that matches a whole pattern, without control characters."""
    whole_text = re.compile(pattern)

    def accepts(value: Any) -> bool:
        return all(
            whole_text.fullmatch(item) and not any(unicodedata.category(char) in ("Cc", "Cs") for char in item)
            for item in (value if repeatable else (value,))
        )

    return Kind(allowed, metavar, str, accepts, repeatable=repeatable, listed=listed)


def calendar_date() -> Kind:
    """A date as YYYY-MM-DD, or the word "today"."""
    return Kind("today, or a date as YYYY-MM-DD", "today|DATE", str, lambda value: value == "today" or _is_date(value))


def _is_date(value: Any) -> bool:
    if not isinstance(value, str) or re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII) is None:
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def size(minimum: int = 1) -> Kind:
    """A number of bytes, or of KiB, MiB, GiB or TiB; the word "auto" stands for None."""

    def parse(text: str) -> int | None:
        if text == "auto":
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])iB", text)
        return int(text) if found is None else int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2])))

    def show(value: int) -> str:
        for power in (4, 3, 2, 1):
            in_units = f"{value / 1024**power:.2f}".rstrip("0").rstrip(".")
            if value >= 1024**power and float(in_units) * 1024**power == value:
                return f"{in_units}{'KMGT'[power - 1]}iB"
        return str(value)

    return Kind(
        "auto, or a size such as 24GiB" if minimum else "auto, 0, or a size such as 24GiB",
        "auto|SIZE",
        parse,
        lambda value: value is None or minimum <= value <= _LARGEST,
        show=show,
    )


def each_of(kind: Kind, example: str) -> Kind:
    """One value of `kind`, or several separated by commas: a tuple; None for "auto"."""

    def parse(text: str) -> tuple[Any, ...] | None:
        return None if text == "auto" else tuple(kind.parse(word.strip()) for word in text.split(","))

    return Kind(
        f"{kind.allowed}, or one per GPU such as {example}",
        f"{kind.metavar}[,...]",
        parse,
        lambda value: value is None or all(each is not None and kind.accepts(each) for each in value),
        listed=True,
        show=lambda value: ",".join(map(kind.show, value)),
    )


def _path(word: str) -> Path:
    if not word:
        raise ValueError("an empty path would mean the current directory")
    return Path(word)


PATH = Kind("a path that is not empty", "PATH", _path)
_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
SWITCH = Kind(
    "true or false",
    "",
    lambda word: _SWITCHES[word.lower()],
    flag=True,
)
