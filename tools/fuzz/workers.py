"""Runs cases in forked workers with limits of memory and time, and reports how each ended."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.fuzz.targets import TARGETS, run

CPU_S = 5.0
"""CPU time, including child processes. The load of the machine does not count."""
HANG_S = 60.0
"""Wall-clock time, for plan and serve together."""
MEMORY_BYTES = 1 << 30
"""Memory in addition to that of the worker at start."""
ALLOWED = frozenset({0, 2, 3, 4})
_CASES_A_WORKER = 300
"""A new worker then replaces it, so that effects of cases do not add up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended. `codes`: the exit codes of plan and serve, by name. `problem` says what is wrong."""

    kind: str
    number: int
    codes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    output: str = ""
    problem: str | None = None


def make_case(kind: str, seed: int, number: int, folder: Path) -> None:
    """Writes the files of a case."""
    TARGETS[kind].write(random.Random(f"{seed} {kind} {number}"), folder)


def run_all(kind: str, seed: int, numbers: Iterable[int], num_workers: int) -> Iterator[Outcome]:
    """The outcomes of all cases, as they end."""
    left = iter(numbers)
    workers = [_Worker(kind, seed) for _ in range(num_workers)]
    busy = [worker for worker in workers if worker.begin(next(left, None))]
    try:
        while busy:
            wait_s = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            ready, _, _ = select.select([worker.socket for worker in busy], [], [], wait_s)
            for worker in list(busy):
                if worker.socket in ready or time.monotonic() > worker.deadline:
                    yield worker.end()
                    if not worker.begin(next(left, None)):
                        busy.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that runs cases one after another, and its replacement when it dies."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._seed = kind, seed
        self._number = 0
        self.deadline = 0.0
        self._start()

    def _start(self) -> None:
        self.socket, theirs = socket.socketpair()
        self._folder = tempfile.TemporaryDirectory(prefix="ballast-fuzz-")
        self._num_cases = 0
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self.socket.close()
                os.setsid()
                _serve(self._kind, self._seed, Path(self._folder.name), theirs)
            finally:
                os._exit(1)  # only a worker that is broken or no longer needed gets here
        theirs.close()

    def begin(self, number: int | None) -> bool:
        """Starts a case. Returns False if there is none left."""
        if number is None:
            return False
        if self._num_cases >= _CASES_A_WORKER:
            self.stop()
            self._start()
        self._num_cases += 1
        self._number = number
        self.socket.sendall(f"{number}\n".encode())
        self.deadline = time.monotonic() + HANG_S
        return True

    def end(self) -> Outcome:
        """The outcome of the case that has ended or that is stopped now."""
        reply = b""
        with suppress(OSError):
            self.socket.settimeout(max(0.01, self.deadline - time.monotonic()))
            while not reply.endswith(b"\n"):
                part = self.socket.recv(1 << 16)
                if not part:
                    break
                reply += part
        if reply.endswith(b"\n"):
            return _judged(Outcome(self._kind, self._number, **json.loads(reply)))
        timed_out = time.monotonic() > self.deadline
        if not timed_out:
            time.sleep(0.1)  # until the kernel knows how it ended
        status = self.stop()
        self._start()
        problem = f"gave no answer in {HANG_S:g} s" if timed_out else f"ended with {_described(status)}"
        return Outcome(self._kind, self._number, problem=problem)

    def stop(self) -> int:
        """Ends the process and its children. Returns its wait status."""
        self.socket.close()
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if not ended:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
        self._folder.cleanup()
        return status


def _described(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _judged(outcome: Outcome) -> Outcome:
    problem = None
    if not ALLOWED.issuperset(outcome.codes.values()):
        problem = f"exit codes {outcome.codes}"
    elif outcome.codes["plan"] != outcome.codes["serve"]:
        problem = f"plan and serve do not agree: {outcome.codes}"
    elif outcome.seconds > CPU_S:
        problem = f"took {outcome.seconds:.1f} s of processor time"
    return Outcome(outcome.kind, outcome.number, outcome.codes, outcome.seconds, outcome.output, problem)


# --- in the worker ----------------------------------------------------------------------------------------------


def _serve(kind: str, seed: int, scratch: Path, requests: socket.socket) -> None:
    _limit_memory()
    with requests.makefile("rw") as stream:
        for line in stream:
            folder = scratch / line.strip()
            folder.mkdir()
            make_case(kind, seed, int(line), folder)
            output = io.StringIO()
            began = _processor_time()
            with redirect_stderr(output):
                codes = run(TARGETS[kind], folder)
            seconds = _processor_time() - began
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            reply = {"codes": codes, "seconds": seconds / len(codes), "output": output.getvalue()[-20_000:]}
            stream.write(json.dumps(reply) + "\n")
            stream.flush()


def _processor_time() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))  # a limit in case no parent is left to stop it
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    with Path(os.devnull).open("wb") as nothing:  # the message of Rust before it aborts
        os.dup2(nothing.fileno(), sys.__stderr__.fileno() if sys.__stderr__ else 2)
