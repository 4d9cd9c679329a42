"""Creates the spans of each request: the whole request, and in it tokenising, queue, prompt and reply."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ballast.generation.admitted_job import Phases
from ballast.server.requests.record import Record
from ballast.server.telemetry.spans import Span, SpanContext, Value, child_of, read_parent, root

COUNTS = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
"""Counts of a record, with OpenTelemetry's names for generative models."""


class Tracer:
    """Continues the client's trace, or begins one. `export` gets the spans of each traced request."""

    def __init__(
        self,
        export: Callable[[Sequence[Span]], None],
        share: float,
        choose: Callable[[], float] = random.random,
    ) -> None:
        """`share`: the fraction of requests without a client's trace that are traced, 0 to 1."""
        self._export = export
        self._share = share
        self._choose = choose

    def begin(self, headers: Mapping[str, str]) -> SpanContext:
        """The span of a request with these headers."""
        parent = read_parent(headers.get("traceparent", ""), headers.get("tracestate", ""))
        if parent is not None:
            return child_of(parent)
        return root(sampled=self._choose() < self._share)

    def end(self, context: SpanContext, record: Record, method: str) -> None:
        """Create the spans of an ended request, if it is traced."""
        if not context.sampled:
            return
        now = time.monotonic()
        unix_ns = time.time_ns() - int(now * 1e9)

        def at(monotonic_s: float) -> int:
            return unix_ns + int(monotonic_s * 1e9)

        failed = record.status >= 500 or record.outcome in ("error", "timeout")
        whole = Span(
            context,
            f"{method} {record.endpoint}",
            "server",
            at(record.started),
            at(now),
            _attributes(record, method, failed=failed),
            failed,
        )
        inside = [] if record.phases is None else list(_intervals(record.started, record.phases, now))
        self._export(
            [whole, *(Span(child_of(context), name, "internal", at(start), at(end)) for name, start, end in inside)]
        )


def _intervals(started: float, phases: Phases, ended: float) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of each phase that has begun. An interrupted phase ends with the request."""
    yield "prepare", started, phases.submitted_s
    yield "queue", phases.submitted_s, max(phases.submitted_s, phases.admitted_s) if phases.admitted_s else ended
    if phases.admitted_s:
        yield "prefill", phases.admitted_s, phases.first_token_s or ended
    if phases.first_token_s:
        yield "decode", phases.first_token_s, phases.last_token_s


def _attributes(record: Record, method: str, *, failed: bool) -> dict[str, Value]:
    """Counts and names. Of the client's text only the request id, whose format is checked."""
    found: dict[str, Value] = {
        "http.request.method": method,
        "http.response.status_code": record.status,
        "ballast.endpoint": record.endpoint,
        "ballast.request_id": record.request_id,
        "ballast.outcome": record.outcome,
    }
    found |= {name: record.fields[key] for key, name in COUNTS.items() if key in record.fields}
    if (reason := record.fields.get("finish_reason")) is not None:
        found["gen_ai.response.finish_reasons"] = str(reason).split("+")
    if failed:
        found["error.type"] = record.outcome
    return found
