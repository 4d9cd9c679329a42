"""Reports why the process ends, and ends it when the interpreter's own shutdown may hang."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from ballast.errors import BallastError

TERMINATION_LOG = Path("/dev/termination-log")
"""The file from which Kubernetes reads why a container ended."""


def report(reason: str) -> None:
    """Write why the process ends as the last line on standard error, and to the termination log.

    What the log has already stays: a command may have written more there, for programs.
    """
    reason = reason.encode(errors="backslashreplace").decode()  # a file's name may be no text
    sys.stderr.write(f"{reason}\n")
    with contextlib.suppress(OSError):  # a log that cannot be written must not hide the reason
        if TERMINATION_LOG.stat().st_size == 0:
            TERMINATION_LOG.write_text(reason.splitlines()[-1], encoding="utf-8")


def exit_now(error: BallastError) -> NoReturn:
    """Report `error` and end the process now, with its exit code.

    Nothing is torn down, since a device that waits for the host or a thread that never returns would block that for
    ever. The kernel reclaims memory and devices.
    """
    report(f"ballast: {error}")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            stream.flush()
    os._exit(error.exit_code)
