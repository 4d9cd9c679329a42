"""Reports a pull's result and progress to the calling program.

Kubernetes publishes the file as the container's termination message, and the operator reads the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from ballast.errors import BallastError, ConfigError, shown
from ballast.hub.errors import (
    BusyError,
    FullDiskError,
    NotFoundError,
    NotWritableError,
    TokenError,
    UnreachableError,
    WrongBytesError,
)

REASONS: tuple[tuple[type[BallastError], str], ...] = (
    (UnreachableError, "HubUnreachable"),
    (TokenError, "TokenRefused"),
    (NotFoundError, "ModelNotFound"),
    (FullDiskError, "VolumeFull"),
    (NotWritableError, "VolumeNotWritable"),
    (WrongBytesError, "WrongBytes"),
    (BusyError, "PulledElsewhere"),
)
"""Errors → one word for programs. The operator has a fix for each."""

_MAX_CHARS = 2000
"""Maximum length of a message. Kubernetes keeps 4,096 bytes of a termination message."""
_TIMEOUT_S = 2.0


def reason(error: BallastError) -> str:
    """The error as one word for programs."""
    return next((word for kind, word in REASONS if isinstance(error, kind)), "PullFailed")


@contextmanager
def written_to(file: Path | None) -> Iterator[dict[str, str]]:
    """Write the dictionary that the caller fills, or the error that the caller raises, to `file` as JSON. Raises
    ConfigError if the file cannot be written."""
    report: dict[str, str] = {}
    try:
        yield report
    except BallastError as error:
        report |= {"reason": reason(error), "message": shown(str(error), _MAX_CHARS)}
        raise
    finally:
        if file is not None and report:
            _write(file, report)


def _write(file: Path, report: dict[str, str]) -> None:
    try:
        file.write_text(json.dumps(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError("report", file, f"cannot be written ({error.strerror})") from error


@contextmanager
def progress_page(port: int | None) -> Iterator[Callable[[int, int], None]]:
    """Serve /readyz on `port` of every address: status 503 and the downloaded fraction. Yields a function that takes
    the bytes so far and the total. Raises ConfigError for a port in use."""
    if port is None:
        yield lambda done, total: None
        return
    answer: dict[str, Any] = {"status": "pulling", "progress": 0.0}

    def update(done: int, total: int) -> None:
        answer.update(progress=round(done / max(total, 1), 4), bytes=done, total_bytes=total)

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S  # one connection at a time, with a short timeout

        def do_GET(self) -> None:
            body = json.dumps(dict(answer)).encode()
            self.send_response(503 if self.path == "/readyz" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Only the pull writes to the log."""

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """The client has closed the connection."""

    try:
        server = Server(("0.0.0.0", port), Handler)  # noqa: S104  a pod's own network
    except (OSError, OverflowError) as error:
        raise ConfigError("progress_port", port, f"cannot be listened on ({error})") from error
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="ballast-progress", daemon=True)
    thread.start()
    try:
        yield update
    finally:
        # A slow client does not delay the end of the pull: the thread ends with the process.
        Thread(target=server.shutdown, daemon=True).start()
        thread.join(_TIMEOUT_S)
        server.server_close()
