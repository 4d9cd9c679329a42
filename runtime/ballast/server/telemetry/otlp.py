"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP as JSON, from its own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import orjson

from ballast.server.telemetry.spans import SAMPLED, Span, Value
from ballast.version import __version__

log = logging.getLogger(__name__)

MAX_WAITING = 8192
"""Most spans that wait to be sent. If a collector is too slow, the oldest are dropped."""
MAX_BATCH = 512
PAUSE_S = 1.0
"""Longest wait for a batch to fill."""
TIMEOUT_S = 10.0
FAILURE_LOG_INTERVAL_S = 60.0
"""Least time between two log lines about a collector that does not accept spans."""
LEAVE_S = 5.0
"""Longest time to send the last spans when the server ends."""
KINDS = {"internal": 1, "server": 2}
FAILED = 2


class OtlpExporter:
    """Sends spans, and drops them on failure: the server never waits for its traces."""

    def __init__(self, endpoint: str, resource: Mapping[str, str], client: httpx2.Client | None = None) -> None:
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._resource = resource
        self._client = client or httpx2.Client(timeout=TIMEOUT_S)
        self._waiting: deque[Span] = deque(maxlen=MAX_WAITING)
        self._changed = threading.Condition()
        self._stopping = False
        self._complained = float("-inf")
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="ballast-traces", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans for sending. Does not block."""
        with self._changed:
            self._dropped += max(0, len(self._waiting) + len(spans) - MAX_WAITING)
            self._waiting.extend(spans)
            if len(self._waiting) >= MAX_BATCH:
                self._changed.notify()

    def stop(self) -> None:
        """Send the queued spans, for at most LEAVE_S, and stop the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(LEAVE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or len(self._waiting) >= MAX_BATCH, PAUSE_S)
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                stopping = self._stopping
            if batch:
                self._send(batch)
            elif stopping:
                self._client.close()
                return

    def _send(self, batch: Sequence[Span]) -> None:
        body = orjson.dumps(as_json(batch, self._resource))
        try:
            reply = self._client.post(self._url, content=body, headers={"Content-Type": "application/json"})
            failure = None if reply.is_success else f"it answered {reply.status_code}"
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            failure = f"{type(error).__name__}: {error}"
        if failure is None and not self._dropped:
            return
        with self._changed:
            self._dropped += len(batch) if failure is not None else 0
            if time.monotonic() - self._complained < FAILURE_LOG_INTERVAL_S:
                return
            self._complained = time.monotonic()
            dropped, self._dropped = self._dropped, 0
        log.warning(
            "spans were dropped",
            extra={"collector": self._url, "spans": dropped, "reason": failure or "it is too slow"},
        )


def as_json(spans: Sequence[Span], resource: Mapping[str, str]) -> dict[str, Any]:
    """An ExportTraceServiceRequest as OTLP's JSON: ids in hexadecimal digits, 64-bit numbers as text."""
    scope = {"name": "ballast", "version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    context = span.context
    return {
        "traceId": context.trace_id,
        "spanId": context.span_id,
        **({"parentSpanId": context.parent_id} if context.parent_id else {}),
        **({"traceState": context.state} if context.state else {}),
        "flags": SAMPLED,
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        **({"status": {"code": FAILED}} if span.failed else {}),
    }


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
