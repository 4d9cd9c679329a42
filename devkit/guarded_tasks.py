"""Tasks for a guarded process, by name: effects that hostile input can have on a process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def answer(task: Any) -> Any:
    """Run the task of that name with its arguments."""
    name, *arguments = task
    return _TASKS[name](*arguments)


def _spin() -> NoReturn:
    while True:
        pass


def _compute(seconds: float) -> str:
    begin = time.process_time()
    while time.process_time() < begin + seconds:
        pass
    return "done"


def _panic() -> NoReturn:
    raise type("PanicException", (BaseException,), {})("capacity overflow")


def _fail(text: str) -> NoReturn:
    raise ValueError(text)


_TASKS: Mapping[str, Callable[..., Any]] = {
    "echo": lambda value: value,
    "pid": os.getpid,
    "environment": lambda: dict(os.environ),
    "spin": _spin,
    "compute": _compute,
    "hold the lock": lambda: pow(7, 10**9) % 10,  # one instruction of the interpreter
    "fill": lambda num_bytes: len(bytearray(num_bytes)),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda: sys.exit(7),
    "sleep": time.sleep,
    "fail": _fail,
    "panic": _panic,
}
