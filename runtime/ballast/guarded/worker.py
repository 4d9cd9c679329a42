"""The program of a guarded process: answers tasks one at a time, each within its limits.

    python -m ballast.guarded.worker MODULE PARENT_PID

Standard input is a socket to the parent. `answer(task)` of MODULE does the work; task and answer are plain data.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from ballast.errors import shown
from ballast.guarded.frames import decode, encode, receive, send

_PR_SET_PDEATHSIG = 1
_MAX_TASK_BYTES = 1 << 32
"""The parent is trusted; this is no limit but a check."""
_MAX_CHARS = 1000
"""Most characters of an error's text, which an untrusted file may control."""


def _main(module: str, parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        return  # it was gone before
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt is the parent's to handle
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = importlib.import_module(module).answer
    channel = socket.socket(fileno=0)
    while (data := receive(channel, _MAX_TASK_BYTES)) is not None:
        reply, goes_on = _answered(answer, data)
        send(channel, reply)
        if not goes_on:
            return


def _answered(answer: Callable[[Any], Any], data: bytes) -> tuple[bytes, bool]:
    """The reply, and whether this process can take another task after it."""
    task, cpu_s, memory_bytes = decode(data)
    _limit_memory(memory_bytes)
    # Counts processor time of this process, including C code; its signal ends the process without a handler.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return encode({"answer": answer(task)}), True
    except MemoryError:
        return encode({"out_of_memory": True}), False
    except BaseException as error:  # noqa: BLE001  a panic of a Rust library is no Exception
        return encode({"error": shown(str(error) or type(error).__name__, _MAX_CHARS)}), True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(memory_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
