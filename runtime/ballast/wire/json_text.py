"""Writes JSON and event streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

PART_ITEMS = 1 << 8


def to_json(value: Any) -> bytes:
    """JSON with U+0085, U+2028 and U+2029 escaped, since some clients split lines at them."""
    data = orjson.dumps(value)
    return (
        data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029").replace(b"\xc2\x85", b"\\u0085")
    )


def list_to_json(items: Sequence[Any], show: Callable[[Any], Any] | None = None) -> bytes:
    """A list as JSON, each item converted by `show`. It is encoded in parts, because no other thread can run during a
    call of the encoder."""
    parts = (items[begin : begin + PART_ITEMS] for begin in range(0, len(items), PART_ITEMS))
    return b"[%b]" % b",".join(to_json(part if show is None else [show(item) for item in part])[1:-1] for part in parts)


def event(value: Any) -> bytes:
    """One frame of an event stream."""
    return b"data: " + to_json(value) + b"\n\n"


def named_event(name: str, fields: Mapping[str, Any]) -> bytes:
    """One frame of an event stream with named events. The data repeats the name as `type`."""
    return f"event: {name}\n".encode() + event({"type": name, **fields})
