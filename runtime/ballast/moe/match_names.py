"""Finds the names that foreign regular expressions match, in a process of its own.

Python's expressions can take longer than anybody waits, and compiling them too; a file of rules may come from anywhere.
KTransformers' rules look ahead, which libraries that match in linear time do not. So the comparing is done in a process
that is killed when it takes too much.

This file is also that process's program: it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Sequence

TIMEOUT_S = 3.0
"""A thousand rules for a whole model's modules take half a second."""
MEMORY_BYTES = 512 << 20


class PatternError(Exception):
    """What is wrong with a pattern, and which one it is."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


def match_names(patterns: Sequence[str], names: Sequence[str], timeout_s: float = TIMEOUT_S) -> list[frozenset[str]]:
    """For each pattern the names that it is found in. Raises PatternError."""
    if not patterns:
        return []
    command = [sys.executable, "-I", "-S", __file__]
    task = json.dumps({"patterns": list(patterns), "names": list(names)}).encode()
    try:
        done = subprocess.run(command, input=task, capture_output=True, timeout=timeout_s, check=False)  # noqa: S603  our own file
        lines = done.stdout.splitlines()
    except subprocess.TimeoutExpired as stopped:
        lines = (stopped.stdout or b"").splitlines()
    except OSError as error:
        raise PatternError(0, f"cannot be compared, no process can be started: {error.strerror}") from error
    matched = []
    for index, line in enumerate(lines):
        found = json.loads(line)
        if isinstance(found, str):
            raise PatternError(index, found)
        matched.append(frozenset(names[at] for at in found))
    if len(matched) < len(patterns):
        raise PatternError(
            len(matched),
            f"takes more than {timeout_s:g} s or {MEMORY_BYTES >> 20} MiB to compare with the model's modules; "
            "write it without repetitions inside repetitions",
        )
    return matched


def _main() -> None:
    """A line of JSON for each pattern: the indices of the names, or what is wrong with it."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    task = json.load(sys.stdin)
    for text in task["patterns"]:
        found: object
        try:
            pattern = re.compile(text)
            found = [at for at, name in enumerate(task["names"]) if pattern.search(name)]
        except re.error as error:
            found = f"is not a regular expression: {error}"
        except (RecursionError, OverflowError, MemoryError) as error:
            found = f"is too complex for a regular expression ({type(error).__name__})"
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
