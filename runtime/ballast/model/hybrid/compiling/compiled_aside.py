"""Runs a compilation in the background while a model is loaded."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ballast.errors import first_line

log = logging.getLogger(__name__)

COMPILE_LIMIT_S = 900.0
"""Maximum wait for the compiler."""
_NICE = 19
_LOOK_S = 0.25
"""Interval for detecting started compilers."""


class CompiledAside:
    """A compilation on a separate thread. It starts on construction."""

    def __init__(self, name: str, compile_it: Callable[[], None], *, is_urgent: bool = True) -> None:
        """`name` is for the log. If `is_urgent` is false, compiler processes that the thread starts get the lowest CPU
        priority. The thread keeps its priority, because it may hold the interpreter's lock."""
        self.name = name
        self._compile = compile_it
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ballast-compile", daemon=True)
        self._thread.start()
        if not is_urgent:
            threading.Thread(target=self._lower_priority, name="ballast-compile-nice", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether the compiler has ended, with or without an error."""
        return not self._thread.is_alive()

    def wait(self, limit_s: float = COMPILE_LIMIT_S) -> None:
        """Wait for its end. Raises its error, and RuntimeError if it takes longer than the limit."""
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise RuntimeError(f"the compiler has not ended after {limit_s:.0f} s")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._compile()
        except BaseException as failure:  # noqa: BLE001  raised by `wait`
            self._failure = failure
        why = "" if self._failure is None else first_line(self._failure)
        extra = {"kernels": self.name, "seconds": round(time.monotonic() - begin, 2), "failure": why}
        log.info("compiler ended", extra=extra)

    def _lower_priority(self) -> None:
        while self._thread.is_alive():
            for process in _descendants(Path(f"/proc/self/task/{self._thread.native_id}")):
                with suppress(OSError):  # the process has ended, or the system has no priorities
                    os.setpriority(os.PRIO_PROCESS, process, _NICE)
            self._thread.join(_LOOK_S)


def _descendants(task: Path) -> Iterator[int]:
    """The descendant processes of a thread, which is given by its path `task` in /proc."""
    with suppress(OSError):  # the thread has ended, or the system lists no children
        for child in (task / "children").read_text().split():
            yield int(child)
            for thread in Path("/proc", child, "task").iterdir():
                yield from _descendants(thread)
