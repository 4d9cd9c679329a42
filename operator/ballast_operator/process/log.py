"""Log output: one line an event, as text or JSON, with the event's facts as key=value or fields."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import aiohttp
from pythonjsonlogger.json import JsonFormatter

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

LogFormat = Literal["text", "json"]


def configure_logging(form: LogFormat, level: str) -> None:
    """Log to standard error, without kopf's messages below a warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s") if form == "json" else _TextFormatter()
    )
    handler.addFilter(_without_expected_tracebacks)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it does not handle signals


def _without_expected_tracebacks(record: logging.LogRecord) -> bool:
    """Take the traceback from kopf's messages about an answer of the API server, such as a 404 for a kind that is gone.

    The message has the answer, and the watches begin again.
    """
    error = record.exc_info[1] if record.exc_info else None
    causes = (error, error.__cause__) if error is not None else ()
    if record.name.partition(".")[0] == "kopf" and any(isinstance(it, (aiohttp.ClientError, OSError)) for it in causes):
        record.exc_info = record.exc_text = None
    return True


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in _STANDARD)
        return f"{super().format(record)} {facts}".rstrip()
