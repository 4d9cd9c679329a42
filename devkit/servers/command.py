"""Runs a command of `ballast` to completion, for tests of its output and exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

Ended = subprocess.CompletedProcess[str]


def run_interpreter(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run `command` with its output captured."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(environment),
        timeout=timeout_s,
        check=False,
    )


class Command:
    """How commands are run."""

    run: ClassVar[Callable[[Sequence[str], Mapping[str, str], float], Ended]] = staticmethod(run_interpreter)
    """How an interpreter is started; the pytest configuration replaces it with `prefork`."""


def ballast(arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float = 120) -> Ended:
    """Run `ballast` with these arguments and exactly this environment."""
    return Command.run([sys.executable, "-m", "ballast", *arguments], environment, timeout_s)
