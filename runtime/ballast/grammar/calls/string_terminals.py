"""Terminals for bare strings that a schema restricts: patterns, lengths and formats.

llguidance enforces the same keywords for strings in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

HELD = frozenset({"type", "pattern", "minLength", "maxLength", "format"})
"""Keywords of strings that `terminal` follows."""
ANY_TEXT = "(?s:.*)"

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    (
        rf"({_GROUP}:){{7}}{_GROUP}",
        *(rf"({_GROUP}:){{1,{most}}}(:{_GROUP}){{1,{7 - most}}}" for most in range(1, 7)),
        rf":((:{_GROUP}){{1,7}}|:)",
        rf"({_GROUP}:){{1,7}}:",
        rf"({_GROUP}:){{6}}{_IPV4}",
        rf"::([fF]{{4}}:)?{_IPV4}",
    )
)
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": r"P([0-9]+W|[0-9]+Y([0-9]+M([0-9]+D)?)?(T[0-9]+[HMS])?|[0-9]+M([0-9]+D)?(T[0-9]+[HMS])?"
    r"|[0-9]+D(T[0-9]+[HMS])?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:([a-zA-Z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9a-fA-F]{2})*",
}


def terminal(schema: Mapping[str, Any]) -> str | None:
    """An expression of terminals for strings that follow the keywords in `HELD`; None where there is none."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    parts = [f"(?s:.{{{least},{most}}})"] if least or most != "" else []
    if "pattern" in schema:
        pattern = _whole(schema["pattern"])
        if pattern is None:
            return None
        parts.append(pattern)
    if "format" in schema:
        if not isinstance(schema["format"], str) or schema["format"] not in FORMATS:
            return None
        parts.append(FORMATS[schema["format"]])
    return " & ".join(map(_literal, parts or [ANY_TEXT]))


def _literal(pattern: str) -> str:
    escaped = "".join(each if len(each) > 1 else {"/": r"\/", "\n": r"\n"}.get(each, each) for each in _steps(pattern))
    return f"/{escaped}/"


def _whole(pattern: object) -> str | None:
    """The pattern of whole texts in which `pattern` is found; None for one with anchors inside."""
    if not isinstance(pattern, str):
        return None
    alternatives, depth, in_class = [""], 0, False
    for each in _steps(pattern):
        if in_class:
            in_class = each != "]"
        elif each == "[":
            in_class = True
        elif each == "|" and depth == 0:
            alternatives.append("")
            continue
        else:
            depth += {"(": 1, ")": -1}.get(each, 0)
            if each in ("^", "$"):
                each = {"^": _BEGIN, "$": _END}[each]
        alternatives[-1] += each
    found = []
    for text in alternatives:
        begin, end = text.startswith(_BEGIN), text.endswith(_END)
        inner = text[begin : len(text) - end]
        if _BEGIN in inner or _END in inner:
            return None
        found.append(f"{'' if begin else ANY_TEXT}(?:{inner}){'' if end else ANY_TEXT}")
    return "|".join(found)


_BEGIN, _END = "\ufde0", "\ufde1"
"""Anchors while a pattern is read. No text has these characters."""


def _steps(pattern: str) -> Iterator[str]:
    """The characters of a pattern, each with the backslash before it."""
    rest = iter(pattern)
    for char in rest:
        yield char + next(rest, "") if char == "\\" else char
