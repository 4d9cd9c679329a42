"""Reports why the process ends, and ends it if the interpreter's shutdown may hang."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ballast.errors import BallastError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that stop a server or a batch cleanly."""

TERMINATION_LOG = Path("/dev/termination-log")
"""The file from which Kubernetes reads why a container ended."""


class _Output(io.FileIO):
    """Standard output that keeps the error of the first failed write, because later writes may succeed."""

    failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


_output: _Output | None = None


def watch_output() -> None:
    """Make errors of standard output available to `output_error`. If the process was started without standard output or
    standard error, open them (the first as not writable, the second discards everything): otherwise the next opened
    file would get the number, and the output."""
    global _output
    for number, stream, mode in ((1, sys.stdout, os.O_RDONLY), (2, sys.stderr, os.O_WRONLY)):
        if stream is None:
            nothing = os.open(os.devnull, mode)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        was = sys.stdout
        _output = _Output(1, "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_output),
            encoding="utf-8" if was is None else was.encoding,
            errors="backslashreplace",  # a file name may be invalid text
            line_buffering=was is not None and was.isatty(),
        )


def output_error() -> OSError | None:
    """Why data written to standard output was not delivered; None if it was. Buffered data is then dropped, so
    that the interpreter does not fail on it when it ends."""
    if _output is None:
        return None
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if _output.failure is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return _output.failure


def report(reason: str) -> None:
    """Write why the process ends as the last line on standard error, and to the termination log.

    Existing content of that log is kept: a command may have written more there, for programs.
    """
    reason = reason.encode(errors="backslashreplace").decode()  # a file name may be invalid text
    with contextlib.suppress(OSError):  # full or closed: the exit code still reports the error
        sys.stderr.write(f"{reason}\n")
        sys.stderr.flush()
    with contextlib.suppress(OSError):  # a log that cannot be written must not hide the reason
        if TERMINATION_LOG.stat().st_size == 0:
            TERMINATION_LOG.write_text(reason.splitlines()[-1], encoding="utf-8")


def exit_now(error: BallastError) -> NoReturn:
    """Report `error` and end the process now, with its exit code.

    Skips the interpreter's shutdown, which may block forever if a device or a thread hangs. The kernel frees memory and
    devices.
    """
    report(f"ballast: {error}")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            stream.flush()
    os._exit(error.exit_code)
