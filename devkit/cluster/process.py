"""Child processes, each with a log. The kernel kills them when the test process is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

END_TIMEOUT_S = 20


_given_ports: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A free port from the kernel that was not returned before."""
    while True:
        with socket.socket() as sock:
            sock.bind((host, 0))
            port = int(sock.getsockname()[1])
        if port not in _given_ports:
            _given_ports.add(port)
            return port


class Child(Protocol):
    """The part of subprocess.Popen's interface that is used."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Process:
    """One program; its output is appended to `<logs>/<name>.log`, also after restarts."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        logs: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log_path = logs / f"{name}.log"
        self.env = env
        self.cwd = cwd
        self._child: Child | None = None

    def start(self) -> None:
        """Call this in a thread that lives at least as long as the program."""
        assert not self.is_running, f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            self._child = self._launch(log)

    def _launch(self, log: IO[bytes]) -> Child:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *self.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if self.env is None else {**os.environ, **self.env},
            cwd=self.cwd,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def check(self) -> None:
        """Raise an error with the end of the log if the program has exited."""
        if not self.is_running:
            raise RuntimeError(f"{self.name} exited with {self.exit_code}; its log ends:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after 20 s; no effect if it is not running."""
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL immediately."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait(END_TIMEOUT_S)

    def pause(self) -> None:
        """Send SIGSTOP: the process keeps its connections but does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def rss_bytes(self) -> int:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024

    def cpu_s(self) -> float:
        """CPU seconds used since it started, user and system."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
