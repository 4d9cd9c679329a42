"""Spans of the operator's passes, sent to an OpenTelemetry collector by OTLP over HTTP as JSON.

The runtime sends its own in the same way (decision 4); the two share no code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import aiohttp

log = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Maximum number of spans that wait to be sent. If a collector does not keep up, the oldest are dropped."""
MAX_BATCH = 512
PAUSE_S = 1.0
"""Pause between two batches."""
TIMEOUT_S = 10.0
FAILURE_LOG_INTERVAL_S = 60.0
"""Minimum time between two log lines about a collector that accepts no spans."""
LEAVE_S = 3.0
"""Maximum time to send the last spans when the operator ends."""
INTERNAL, FAILED, SAMPLED = 1, 2, 1


@dataclass(slots=True)
class Span:
    """A pass: its times are nanoseconds of Unix time."""

    name: str
    start_ns: int
    attributes: dict[str, str | int]
    end_ns: int = 0
    error: str = ""
    requests: int = 0
    """To the API server."""
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))


_current: ContextVar[Span | None] = ContextVar("current", default=None)


class Traces:
    """Takes spans and sends them from a task of its own. Without an endpoint it does nothing."""

    def __init__(self, endpoint: str | None, service_name: str, instance: str) -> None:
        self._url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
        self._resource = {
            "service.name": service_name,
            "service.instance.id": instance,
        }
        self._waiting: deque[Span] = deque(maxlen=MAX_WAITING)
        self._dropped = 0
        self._complained = float("-inf")

    @contextlib.contextmanager
    def span(self, name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        """A pass, for the duration of the block. A pass that raises has failed; a cancelled pass is not recorded."""
        if self._url is None:
            yield
            return
        span = Span(name, time.time_ns(), dict(attributes))
        token = _current.set(span)
        try:
            yield
        except Exception as error:
            span.error = f"{type(error).__name__}: {error}"
            self._put(span)
            raise
        else:
            self._put(span)
        finally:
            _current.reset(token)

    def requested(self) -> None:
        """Count a request to the API server for the pass that makes it."""
        if (span := _current.get()) is not None:
            span.requests += 1

    async def run(self) -> None:
        """Send waiting spans until cancelled, then the last ones within LEAVE_S."""
        if self._url is None:
            return
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            try:
                while True:
                    await asyncio.sleep(PAUSE_S)
                    await self._send_all(session, self._url)
            except asyncio.CancelledError:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await self._send_all(session, self._url)
                raise

    def _put(self, span: Span) -> None:
        span.end_ns = time.time_ns()
        self._dropped += len(self._waiting) == MAX_WAITING
        self._waiting.append(span)

    async def _send_all(self, session: aiohttp.ClientSession, url: str) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            try:
                async with session.post(url, json=as_json(batch, self._resource), allow_redirects=False) as reply:
                    failure = None if reply.status < 300 else f"it answered {reply.status}"
            except asyncio.CancelledError:
                self._waiting.extendleft(reversed(batch))  # the last round takes it along
                raise
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                failure = f"{type(error).__name__}: {error}"
            if failure is not None:
                self._dropped += len(batch)
            self._log_failure(url, failure)

    def _log_failure(self, url: str, failure: str | None) -> None:
        now = time.monotonic()
        if self._dropped and now - self._complained >= FAILURE_LOG_INTERVAL_S:
            reason = failure or "it does not keep up"
            log.warning("spans were dropped", extra={"collector": url, "spans": self._dropped, "reason": reason})
            self._complained, self._dropped = now, 0


def as_json(spans: Sequence[Span], resource: Mapping[str, str]) -> dict[str, Any]:
    """An ExportTraceServiceRequest as OTLP's JSON: ids in hexadecimal digits, 64-bit numbers as text."""
    scope = {"name": "ballast-operator"}
    sent = {"scope": scope, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [sent]}]}


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "flags": SAMPLED,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes({**span.attributes, "ballast.api_requests": span.requests}),
        **({"status": {"code": FAILED, "message": span.error}} if span.error else {}),
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]
