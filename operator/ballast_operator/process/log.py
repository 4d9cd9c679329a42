"""Log output: one line an event, as text or JSON, with the event's facts as key=value or fields."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

LogFormat = Literal["text", "json"]


def configure_logging(form: LogFormat, level: str) -> None:
    """Log to standard error, without kopf's messages below a warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s") if form == "json" else _TextFormatter()
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it does not handle signals


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in _STANDARD)
        return f"{super().format(record)} {facts}".rstrip()
