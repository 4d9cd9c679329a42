"""Servers forked from one process that has imported everything they need: importing takes most of a server's start.

The template process runs no thread and no event loop, so that a fork of it is as good as a new interpreter. For each
server it forks a keeper, which forks the server, waits for it and says how it ended. A server runs its module as
`python -m` does, to the interpreter's ordinary end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

PRELOADED = ("ballast.cli", "ballast.server.serve", "support.models.vocabulary")
"""Not the modules that are run: they would be there twice."""

cpu_s = 0.0
"""What ended servers took; no child of this process, so the system does not count them as such."""


class ForkedProcess:
    """A server; of subprocess.Popen what tests use of one."""

    def __init__(self, pid: int, ended: socket.socket, stderr: IO[str]) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        global cpu_s
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
            with self._ended:
                self.returncode, took_s = json.loads(self._ended.recv(1000))
            cpu_s += took_s
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that has imported everything; started with the first server."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Run `[python, "-m", module, argument, ...]` with standard error on a pipe."""
        control = self._control or self._begin()
        ended, ended_there = socket.socketpair()
        read_end, write_end = os.pipe()
        request = json.dumps([command[2:], dict(environment)]).encode()
        socket.send_fds(ended, [len(request).to_bytes(4, "big")], [write_end])
        ended.sendall(request)
        socket.send_fds(control, [b"."], [ended_there.fileno()])
        ended_there.close()
        os.close(write_end)
        pid = int.from_bytes(ended.recv(4), "big")
        return ForkedProcess(pid, ended, os.fdopen(read_end))

    def _begin(self) -> socket.socket:
        self._control, there = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(there.fileno())]
        # Of a terminal's interrupt the test process makes something; it does not come here.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], start_new_session=True
        )
        there.close()
        return self._control

    def end(self) -> None:
        """Let the template go; servers that still run are left alone."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(60)


def _serve(control: socket.socket) -> None:
    """Fork a keeper for each request, until the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are nobody's to wait for
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _keep(socket.socket(fileno=fds[0]))
            return
        os.close(fds[0])


def _keep(ended: socket.socket) -> None:
    """Fork the server and say how it ended. Returns in the server alone, to whoever starts its module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, fds, _, _ = socket.recv_fds(ended, 4, 1)
    request = bytearray()
    while len(request) < int.from_bytes(header, "big"):
        request += ended.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        ended.close()
        os.dup2(fds[0], 2)
        os.close(fds[0])
        sys.argv, environment = json.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        return
    os.close(fds[0])
    ended.sendall(pid.to_bytes(4, "big"))
    _, status, used = os.wait4(pid, 0)
    said = json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]).encode()
    with contextlib.suppress(OSError):  # nobody may care any more
        ended.sendall(said)
    os._exit(0)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
