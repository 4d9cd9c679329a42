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
    """How one request went. Holds no text of prompts or replies."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    outcome: str = ""
    """Set if the status code does not tell: client_gone, timeout, error. Else it follows from the status."""
    endpoint: str = "other"
    is_counted: bool = True
    """Whether metrics count it as a request. Probes, scrapes and other requests that only read the server are not."""
    client: int = 0
    """Who asks, for taking turns: a number of the API key, else of the address."""
    client_priority: WholeRange | None = None
    """The priorities that the client's key allows; None: those that the server does."""
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    """Fields of the body that had no effect, for the reply's headers, the log and the metrics."""
    lowered_max_tokens: int | None = None
    """The number of tokens granted, if the client asked for more; for the reply's headers."""
    phases: Phases | None = None
    """Of a generation; None where none was begun."""
    fields: dict[str, Any] = field(default_factory=dict)

    def note_usage(self, usage: Usage) -> None:
        """Record the tokens that the request used."""
        self.fields["prompt_tokens"] = usage.prompt_tokens
        self.fields["completion_tokens"] = usage.completion_tokens
        self.fields["cached_tokens"] = usage.cached_tokens


def remaining_s(record: Record, timeout_s: float) -> float | None:
    """Seconds left of the time that a request may take in all; None without a limit."""
    return max(0.0, record.started + timeout_s - time.monotonic()) if timeout_s else None
