"""How a process says why it ends, and how it ends where the interpreter's own way out may never return."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from ballast.errors import BallastError

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes looks for the reason why a container ended."""


def report(reason: str) -> None:
    """Say why the process ends: the last line on standard error, and where Kubernetes will find it."""
    sys.stderr.write(f"{reason}\n")
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):  # not writable is no second problem
            TERMINATION_LOG.write_text(reason.splitlines()[-1])


def leave(error: BallastError) -> NoReturn:
    """Report `error` and end the process now, with its exit code.

    Nothing is torn down: a device that waits for the host, or a thread that never returns, would hold that up for ever.
    The kernel takes back memory and devices.
    """
    report(f"ballast: {error}")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that is gone, a stream that is closed
            stream.flush()
    os._exit(error.exit_code)
