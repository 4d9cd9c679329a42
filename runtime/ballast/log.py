"""Formats log lines: one event per line, with stable keys, for people or for machines.

Code logs with the standard library: the event is the message, its fields are in `extra`:
`log.info("preempted", extra={"request_id": id})`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from ballast.config.options import LogConfig
from ballast.host.sizes import human

# Attributes of every record; all others come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def configure_logging(config: LogConfig) -> None:
    """Send all records to standard error, in the configured format and from the configured level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    # Libraries log from level warning.
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("ballast").setLevel(config.log_level.upper())
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, then the event's own keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, event, key=value; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        pairs = "".join(f" {key}={_quoted(_readable(key, value))}" for key, value in _extra(record).items())
        event = record.getMessage().replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname:<8} {event}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _readable(key: str, value: object) -> object:
    """A number of bytes with its unit; other values unchanged."""
    return human(value) if key.endswith("_bytes") and type(value) is int else value


def _quoted(value: object) -> str:
    plain = str(value)
    # Quoting keeps an event on one line and a value in one token, for any text that a client sent.
    return plain if plain.isprintable() and plain and not set(plain) & set(' "=') else json.dumps(plain)
