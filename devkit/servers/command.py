"""Runs a command of `ballast` to its end, for tests of what it prints and how it exits."""

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
    """pytest's configuration takes `prefork` in place of a new interpreter."""


def ballast(arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float = 120) -> Ended:
    """`ballast` with these arguments, and with no other environment than this."""
    return Command.run([sys.executable, "-m", "ballast", *arguments], environment, timeout_s)
