"""Matches names against a client's regular expressions, in a guarded process.

Compiling and matching Python's regular expressions can take very long, and a rule file is not trusted. KTransformers'
rules use lookahead, which libraries with linear time do not support."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from ballast.guarded import GuardedProcess, LimitExceededError, Limits, TaskFailedError

CPU_S = 1.0
"""CPU time limit for all patterns of a file. A thousand patterns take half of it for all modules of a model."""
_MEMORY_BYTES = 512 << 20


class PatternError(Exception):
    """An invalid pattern; the message contains it."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


def match_names(patterns: Sequence[str], names: Sequence[str]) -> list[frozenset[str]]:
    """For each pattern the matching names. Raises PatternError."""
    if not patterns:
        return []
    matched, taken_s = [], 0.0
    with GuardedProcess(__name__, Limits(CPU_S, _MEMORY_BYTES)) as process:
        for index, pattern in enumerate(patterns):
            try:
                found = process.ask({"pattern": pattern, "names": list(names)})
            except TaskFailedError as error:
                raise PatternError(index, str(error)) from error
            except LimitExceededError as error:
                raise PatternError(index, _too_slow(str(error))) from error
            except OSError as error:
                raise PatternError(index, f"cannot be matched: no process can be started ({error.strerror})") from error
            taken_s += found["seconds"]
            if taken_s > CPU_S:
                raise PatternError(index, _too_slow(f"together with earlier patterns, it takes more than {CPU_S:g} s"))
            matched.append(frozenset(names[at] for at in found["matches"]))
    return matched


def _too_slow(why: str) -> str:
    return f"cannot be matched with the model's modules: {why}; write it without repetitions inside repetitions"


def answer(task: Any) -> Any:
    """Runs in the guarded process. Returns the indices of the matching names, and the CPU time."""
    began = time.process_time()
    try:
        pattern = re.compile(task["pattern"])
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"is too complex for a regular expression ({type(error).__name__})") from error
    matches = [at for at, name in enumerate(task["names"]) if pattern.search(name)]
    return {"matches": matches, "seconds": time.process_time() - began}
