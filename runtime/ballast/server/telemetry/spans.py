"""Spans of a trace, and the W3C header that passes a trace from one program to the next."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = str | int | Sequence[str]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1
MAX_STATE = 512
"""Longest `tracestate` that is passed on, in characters."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Identifies a span of a trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool
    parent_id: str = ""
    """The client's span; empty if there is none."""
    state: str = ""
    """The client's `tracestate`."""

    def to_header(self) -> str:
        """The value of `traceparent` and `traceresponse`."""
        return f"00-{self.trace_id}-{self.span_id}-{SAMPLED if self.sampled else 0:02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A completed operation; times are nanoseconds of Unix time."""

    context: SpanContext
    name: str
    kind: Literal["server", "internal"]
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    failed: bool = False


def read_parent(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """The client's span, by the rules of W3C's Trace Context; None if there is no valid one."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = tracestate if len(tracestate) <= MAX_STATE and tracestate.isascii() and tracestate.isprintable() else ""
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED), state=state)


def child_of(parent: SpanContext) -> SpanContext:
    """A new span inside another."""
    return SpanContext(parent.trace_id, secrets.token_hex(8), parent.sampled, parent.span_id, parent.state)


def root(*, sampled: bool) -> SpanContext:
    """The first span of a new trace."""
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8), sampled)
