"""The record of one HTTP request, for the access log, the metrics and the request's time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ballast.config.whole_range import WholeRange
from ballast.generation.admitted_job import Phases
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.usage import Usage


@dataclass(slots=True)
class Record:
    """Facts about one request. Contains no text of prompts or replies."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    outcome: str = ""
    """Set if the status code does not determine it: client_gone, timeout, error. Otherwise derived from the status."""
    endpoint: str = "other"
    is_counted: bool = True
    """Whether metrics count it as a request. Probes, scrapes and other read-only requests are not counted."""
    client: int = 0
    """Identifies the client for fair-share rounds: by its API key, or by its address if there are no keys."""
    client_priority: WholeRange | None = None
    """The priorities that the client's key allows; None: those of the server."""
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    """Fields of the body that had no effect, for the reply's headers, the log and the metrics."""
    lowered_max_tokens: int | None = None
    """The number of tokens granted, if the client asked for more; for the reply's headers."""
    phases: Phases | None = None
    """Phases of a generation; None if none has begun."""
    fields: dict[str, Any] = field(default_factory=dict)

    def note_usage(self, usage: Usage) -> None:
        """Record the tokens used by the request."""
        self.fields["prompt_tokens"] = usage.prompt_tokens
        self.fields["completion_tokens"] = usage.completion_tokens
        self.fields["cached_tokens"] = usage.cached_tokens


def remaining_s(record: Record, timeout_s: float) -> float | None:
    """Remaining seconds of the request's time limit; None without a limit."""
    return max(0.0, record.started + timeout_s - time.monotonic()) if timeout_s else None
