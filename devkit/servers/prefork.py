"""Programs forked from a process that has imported their modules: imports take most of a program's start time.

The template process runs no thread and no event loop, so a fork of it is equivalent to a new interpreter. For each
program it forks a keeper, which forks the program, waits for it and reports its exit status. A program runs its module
like `python -m` and exits normally. When the template process ends, the kernel kills the remaining programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

SERVER_MODULES = ("ballast.cli", "ballast.server.serve_command", "devkit.models.vocabulary")
"""Modules that servers import. Excludes modules that are run, which would be imported twice."""
OPERATOR_MODULES = ("ballast_operator.cli", "ballast_operator.process.run")
"""Modules that operators import."""

cpu_s = 0.0
"""CPU time of finished programs. They are not children of this process, so the system does not count it here."""

PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A forked program, with the part of subprocess.Popen's interface that tests use."""

    def __init__(self, pid: int, ended: socket.socket, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program to end and return its exit code. Raises subprocess.TimeoutExpired."""
        global cpu_s
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            with self._ended:
                self.returncode, took_s = json.loads(self._ended.recv(1000))
            cpu_s += took_s
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program immediately."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that has imported `modules`; starts with the first program."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Run `[python, "-m", module, argument, ...]` with standard error on a pipe."""
        read_end, write_end = os.pipe()
        try:
            pid, ended = self._fork(command, environment, {2: write_end})
        finally:
            os.close(write_end)
        return ForkedProcess(pid, ended, os.fdopen(read_end))

    def start_logged(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> ForkedProcess:
        """Run `[python, "-m", module, argument, ...]` with all output to `log`."""
        pid, ended = self._fork(command, environment, {1: log.fileno(), 2: log.fileno()})
        return ForkedProcess(pid, ended, None)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `[python, "-m", module, argument, ...]` to completion and capture its output.

        Raises subprocess.TimeoutExpired.
        """
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            pid, ended = self._fork(command, environment, {1: output.fileno(), 2: errors.fileno()})
            program = ForkedProcess(pid, ended, None)
            try:
                code = program.wait(timeout_s)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
                raise
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(list(command), code, output.read(), errors.read())

    def _fork(
        self, command: Sequence[str], environment: Mapping[str, str], files: Mapping[int, int]
    ) -> tuple[int, socket.socket]:
        """`files` maps the program's descriptors to descriptors of this process. Returns the pid and the keeper's
        socket."""
        control = self._control or self._begin()
        ended, ended_there = socket.socketpair()
        request = json.dumps([list(files), command[2:], dict(environment)]).encode()
        socket.send_fds(ended, [len(request).to_bytes(4, "big")], list(files.values()))
        ended.sendall(request)
        socket.send_fds(control, [b"."], [ended_there.fileno()])
        ended_there.close()
        return int.from_bytes(ended.recv(4), "big"), ended

    def _begin(self) -> socket.socket:
        self._control, there = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(there.fileno()), *self._modules]
        # The test process handles Ctrl-C; the template runs in its own session so that it gets no SIGINT.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], start_new_session=True
        )
        there.close()
        return self._control

    def end(self) -> None:
        """Stop the template process and all programs that still run."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(60)


def _serve(control: socket.socket) -> None:
    """Fork a keeper for each request until the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _keep(socket.socket(fileno=fds[0]))
            return
        os.close(fds[0])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep(ended: socket.socket) -> None:
    """Fork the program and report how it ended. Returns only in the program, to the code that runs its module."""
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, fds, _, _ = socket.recv_fds(ended, 4, 2)
    request = bytearray()
    while len(request) < int.from_bytes(header, "big"):
        request += ended.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        ended.close()
        targets, sys.argv, environment = json.loads(request)
        for target, fd in zip(targets, fds, strict=True):
            os.dup2(fd, target)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        return
    for fd in fds:
        os.close(fd)
    ended.sendall(pid.to_bytes(4, "big"))
    _, status, used = os.wait4(pid, 0)
    text = json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]).encode()
    with contextlib.suppress(OSError):  # the client may have disconnected
        ended.sendall(text)
    os._exit(0)


if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage, but the collector would scan all objects repeatedly
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
