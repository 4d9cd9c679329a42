"""The parent's side of a guarded process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ballast.guarded.frames import decode, encode, receive, send

_TIMEOUT_S = 30.0
"""The longest wait for an answer, however little processor time the process was given."""
_MAX_ANSWER_BYTES = 256 << 20

# What an interpreter may need to start, and the zone of its clock. Nothing else of the environment goes in there.
_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "TZ")


class TaskFailedError(Exception):
    """A task raised an error within its limits. The text is the error's, at most a few lines."""


class LimitExceededError(Exception):
    """A task was ended because it passed a limit; the text says which, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one task."""

    cpu_s: float
    """CPU time. Unlike wall-clock time, it does not depend on other processes."""
    memory_bytes: int
    """Address space of the whole process, its interpreter included."""


class GuardedProcess:
    """A process for tasks of one module, `answer` of which is called there. Thread-safe; one task at a time.

    It starts with the first task, and again after a task that exceeded its limits. It ends with this object, with
    `close`, or with this process in any case.
    """

    def __init__(self, module: str, limits: Limits) -> None:
        self._module = module
        self._limits = limits
        self._lock = threading.Lock()
        self._running: list[_Running] = []
        """One, or none."""
        weakref.finalize(self, _end_all, self._running)
        _ALL.add(self)

    def ask(self, task: Any) -> Any:
        """The module's answer to `task`; both are plain data.

        Raises TaskFailedError, LimitExceededError, and OSError when no process can be started. Waits while other
        threads ask, each no longer than the limits and the process's start take.
        """
        limits = self._limits
        data = encode([task, limits.cpu_s, limits.memory_bytes])
        with self._lock:
            running = self._started()
            try:
                running.channel.settimeout(_TIMEOUT_S)
                send(running.channel, data)
                reply = receive(running.channel, _MAX_ANSWER_BYTES, _TIMEOUT_S)
                is_late = False
            except TimeoutError:
                reply, is_late = None, True
            except (OSError, ValueError):  # it ended while it was written to, or talks nonsense
                reply, is_late = None, False
            message = {} if reply is None else decode(reply)
            if "answer" in message:
                return message["answer"]
            if "error" in message:
                raise TaskFailedError(message["error"])
            code = _end_all(self._running)
        if "out_of_memory" in message:
            raise LimitExceededError(f"it takes more than {_memory(limits)} of memory")
        raise LimitExceededError(f"it gave no answer within {_TIMEOUT_S:g} s" if is_late else _reason(code, limits))

    def close(self) -> None:
        """End the process. Another task would start it again."""
        with self._lock:
            _end_all(self._running)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> _Running:
        # It ends by itself when the thread that started it does: the kernel takes that thread for its parent. One that
        # was started before this process was forked is another's.
        if self._running and (not self._running[0].is_ours or self._running[0].process.poll() is not None):
            _end_all(self._running)
        if not self._running:
            self._running.append(_start(self._module))
        return self._running[0]


_ALL: weakref.WeakSet[GuardedProcess] = weakref.WeakSet()


def _free_locks() -> None:
    """In a forked process: the thread that held a lock is not there."""
    for each in _ALL:
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_free_locks)


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    started_by: int

    @property
    def is_ours(self) -> bool:
        return self.started_by == os.getpid()


def _start(module: str) -> _Running:
    ours, theirs = socket.socketpair()
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # An isolated interpreter takes no variable's word for where code is; neither does the process that it starts.
    flag = "-I" if sys.flags.isolated else "-P"
    command = [sys.executable, flag, "-m", "ballast.guarded.worker", module, str(os.getpid())]
    try:
        process = subprocess.Popen(  # noqa: S603  our own program
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what a library says of a panic; the reply says it too
            env=environment,
            process_group=0,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Running(process, ours, os.getpid())


def _end_all(running: list[_Running]) -> int:
    """End what runs. Returns the exit code, negative for a signal; the process may have ended by itself before."""
    code = 0
    while running:
        ended = running.pop()
        ended.channel.close()
        if ended.is_ours:
            ended.process.kill()  # does not change how one ends that is ending already
            code = ended.process.wait()
    return code


def _reason(code: int, limits: Limits) -> str:
    if code == -signal.SIGPROF:
        return f"it ran for more than {limits.cpu_s:g} s"
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"its process ended {how}, within limits of {limits.cpu_s:g} s and {_memory(limits)}"


def _memory(limits: Limits) -> str:
    return f"{limits.memory_bytes >> 20} MiB"
