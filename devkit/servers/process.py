"""Runs a server in its own process, for tests and benchmarks, and always stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.message import Message
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

SERVE = ("ballast", "serve")
FAKE = ("devkit.servers.fake_server",)

JSON = {"Content-Type": "application/json"}
"""The headers that the server requires for a body."""

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0

FIRST_INTERVAL_S, LONGEST_INTERVAL_S, GROWTH = 0.005, 0.05, 1.2
"""Interval between two reads of the metrics: each read costs the server and the test time."""


def events_of(reply: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON events of a streamed reply, without its end."""
    for line in reply:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])


def start_interpreter(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run `command` with standard error on a pipe."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(environment), text=True)


class ServerProcess:
    """A running server; a context manager that stops it.

    `module` is SERVE or FAKE, `options` are its arguments. Without `--port` it listens on a free port.
    """

    start: Callable[[Sequence[str], Mapping[str, str]], Any] = staticmethod(start_interpreter)
    """How a process of this interpreter is started; the pytest configuration replaces it with `prefork`."""

    def __init__(
        self,
        *options: str,
        module: Sequence[str] = SERVE,
        environment: Mapping[str, str] | None = None,
        until_ready: bool = True,
        python: str = sys.executable,
    ) -> None:
        self._command = [python, "-m", *module, "--log_format", "json", *options]
        if "--port" not in options:
            self._command += ["--port", "0"]
        self._environment = {**os.environ, **(environment or {})}
        self._until_ready = until_ready
        self._changed = threading.Condition()
        self.events: list[dict[str, Any]] = []
        """Log events so far."""
        self.stderr = ""
        """Other output to standard error so far."""
        self.port = 0
        self.admin_port: int | None = None
        """The port of metrics and other admin endpoints, if it is not `port`."""

    def __enter__(self) -> Self:
        start = ServerProcess.start if self._command[0] == sys.executable else start_interpreter
        self.process = start(self._command, self._environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            listening = self.event("listening")
            self.port, self.admin_port = listening["port"], listening.get("admin_port")
            if self._until_ready:
                self.event("ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        """The URL of the API's port, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """The URL of the admin port, without a path."""
        return f"http://127.0.0.1:{self.admin_port or self.port}"

    def event(self, name: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the first log event `name`. Raises AssertionError with the log on a timeout."""
        return self.wait_for_events(lambda event: event["event"] == name, 1, timeout_s)[0]

    def has_logged(self, name: str) -> bool:
        """Whether it has logged an event `name`."""
        return any(event["event"] == name for event in self.events)

    def wait_for_events(
        self, matches: Callable[[dict[str, Any]], bool], count: int, timeout_s: float = START_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Wait until `count` log events match; return all that match, in log order. Raises AssertionError with the log
        on a timeout."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found[:] = filter(matches, self.events)
            return len(found) >= count or self._ended

        with self._changed:
            self._changed.wait_for(seen, timeout_s)
            seen()
        assert len(found) >= count, (
            f"the server logged {len(found)} of {count} events; its log:\n{self.events}\n{self.stderr}"
        )
        return found

    def get(self, path: str, timeout_s: float = ANSWER_TIMEOUT_S, *, admin: bool = False) -> tuple[int, Message, bytes]:
        """Status, headers and body of a GET; with `admin`, from the admin port."""
        request = urllib.request.Request((self.admin_url if admin else self.url) + path)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def metrics(self) -> dict[str, float]:
        """All samples of /metrics. Names with labels have the form name{key="value"}."""
        _, _, page = self.get("/metrics", admin=True)
        return {
            sample.name + _labels(sample.labels): sample.value
            for family in text_string_to_metric_families(page.decode())
            for sample in family.samples
        }

    def wait_for(
        self, condition: Callable[[dict[str, float]], bool], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, float]:
        """Wait until the metrics meet the condition, and return them. Raises AssertionError on a timeout."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_INTERVAL_S
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, f"the condition is not met within {timeout_s} s; metrics: {metrics}"
            time.sleep(pause_s)
            pause_s = min(pause_s * GROWTH, LONGEST_INTERVAL_S)
        return metrics

    def wait_until_empty(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until no request is queued or running and no KV is held."""
        names = ("ballast_requests_waiting", "ballast_batch_running", "ballast_kv_cache_used_tokens")
        self.wait_for(lambda metrics: not any(metrics[name] for name in names), timeout_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until it exits by itself, and return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(STOP_TIMEOUT_S)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._changed:
                    if line.startswith('{"time"'):
                        self.events.append(json.loads(line))
                    else:
                        self.stderr += line
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def _ended(self) -> bool:
        return not self._reader.is_alive() or self.process.poll() is not None

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)


def ended(*options: str, module: Sequence[str] = FAKE) -> tuple[int, list[str]]:
    """Exit code and standard error lines of a server that fails to start."""
    process = ServerProcess.start([sys.executable, "-m", *module, *options], os.environ)
    try:
        code = process.wait(START_TIMEOUT_S)
    finally:
        process.kill()
        with process.stderr as stream:
            lines = stream.read().splitlines()
    return code, lines


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
