"""JSON as it goes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

PART_ITEMS = 1 << 8


def to_json(value: Any) -> bytes:
    """JSON that survives clients which split lines the Unicode way: U+0085, U+2028 and U+2029 are escaped."""
    data = orjson.dumps(value)
    return (
        data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029").replace(b"\xc2\x85", b"\\u0085")
    )


def list_to_json(items: Sequence[Any], show: Callable[[Any], Any] | None = None) -> bytes:
    """A list, each item as `show` shows it, written part by part: while one call writes a million of them, no other
    thread can run."""
    parts = (items[begin : begin + PART_ITEMS] for begin in range(0, len(items), PART_ITEMS))
    return b"[%b]" % b",".join(to_json(part if show is None else [show(item) for item in part])[1:-1] for part in parts)


def event(value: Any) -> bytes:
    """One frame of an event stream."""
    return b"data: " + to_json(value) + b"\n\n"
