"""The server's process: listens immediately, reports when the engine is ready, drains on a signal, and ends with an
exit code that identifies the reason."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from ballast.config.options import ServerConfig
from ballast.engine.engine import Engine, EngineState
from ballast.engine.supervision import failure_reason, stop_engine, until_loaded, watch_for_hang
from ballast.errors import ConfigError
from ballast.process_exit import STOP_SIGNALS, exit_now
from ballast.server.http.connection import Connection, HttpConfig
from ballast.server.http.tls import Tls
from ballast.server.limits import ServerLimits

log = logging.getLogger(__name__)

BACKLOG = 2048

GRACEFUL_SHUTDOWN_S = 5
"""How long connections may take to read their last bytes after the last request."""

LEAVE_LOOK_S = 0.02
"""Interval for checking whether every client has disconnected."""

MAX_OPEN_FILES = 65536


# The address is not one of this machine, or its family is not supported.
_HOST_ERRORS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def listen(host: str, port: int, option: str = "port") -> socket.socket:
    """A listening socket, opened before anything is loaded, so that a port in use is reported immediately.

    Raises ConfigError for the host, or for the port, named `option`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError("host", host, f"not an address to listen on: {error.strerror}") from None
    except UnicodeError:
        raise ConfigError("host", host, "not an address to listen on: invalid host name") from None
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError("host", host, f"not an address to listen on: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in _HOST_ERRORS:
            raise ConfigError("host", host, f"not an address to listen on: {error.strerror}") from None
        reason = "another process uses this port; choose another" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(option, port, f"cannot listen on {host}: {reason}") from None
    listener.setblocking(False)
    return listener


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listening sockets of one server."""

    api: socket.socket
    admin: socket.socket | None
    """None: the API's port serves the admin routes too."""

    @property
    def address(self) -> str:
        """The IP address of both."""
        return str(self.api.getsockname()[0])


def open_listeners(config: ServerConfig) -> Listeners:
    """Open the sockets of `config`. Raises ConfigError."""
    api = listen(config.host, config.port)
    if config.admin_port is None:
        return Listeners(api, None)
    try:
        return Listeners(api, listen(config.host, config.admin_port, "admin_port"))
    except ConfigError:
        api.close()
        raise


@dataclass(frozen=True, slots=True)
class Apps:
    """The applications around one engine."""

    api: ASGIApp
    admin: ASGIApp
    """Served only if there is an admin port."""


Build = Callable[[Callable[[], None], asyncio.Future[None]], tuple[Engine, Apps]]
"""(on_death, shutting_down) → an engine and the applications around it. The engine calls `on_death` when it dies;
`shutting_down` completes when the server must fail the requests that still run."""


def run_server(build: Build, listeners: Listeners, tls: Tls | None, config: ServerConfig, limits: ServerLimits) -> None:
    """Serve until a signal or the engine's death. Returns after a clean stop.

    If the engine dies or hangs, its requests fail and the process ends: with the exit code of the BallastError that
    killed it, or with the code for internal errors.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(build, listeners, tls, config, limits))


async def _run(build: Build, listeners: Listeners, tls: Tls | None, config: ServerConfig, limits: ServerLimits) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _on_signal, number, stopping)

    def on_death() -> None:
        loop.call_soon_threadsafe(stopping.set)

    shutting_down: asyncio.Future[None] = loop.create_future()
    engine, apps = build(on_death, shutting_down)
    _freeze_long_lived_objects()
    limits = replace(limits, max_connections=min(limits.max_connections, _raise_open_file_limit() // 4))
    servers = [PortServer(apps.api, listeners.api, limits, tls)]
    if listeners.admin is not None:
        servers.append(PortServer(apps.admin, listeners.admin, limits, None))
    engine.start()
    for server in servers:
        server.serving.add_done_callback(lambda _: stopping.set())
    ports = dict(zip(("port", "admin_port"), (server.port for server in servers), strict=False))
    log.info("listening", extra={"host": config.host, **ports})
    tasks = [
        asyncio.create_task(_log_when_ready(engine, _url(config, servers[0].port))),
        asyncio.create_task(watch_for_hang(engine, limits.fatal_silence_s)),
    ]
    async with contextlib.AsyncExitStack() as stack:
        if tls is not None:
            await stack.enter_async_context(tls.renewed())
        await stopping.wait()
    for task in tasks:
        task.cancel()
    until = loop.time() + config.drain_timeout_s
    if engine.state is EngineState.READY:
        engine.announce_drain()
        await servers[0].http.wait_for_clients(config.drain_timeout_s, limits.leave_s)
    stopped = await stop_engine(engine, max(0.0, until - loop.time()), limits.stuck_s)
    if not stopped:
        shutting_down.set_result(None)
    for server in servers:
        server.http.stop()
    await asyncio.gather(*(server.serving for server in servers))
    if engine.failure is not None:
        exit_now(failure_reason(engine.failure))
    log.info("stopped")
    if not stopped:
        # The engine's thread cannot be stopped from here. The interpreter would wait for threads that wait for it or
        # compile kernels for it.
        logging.shutdown()
        os._exit(0)


def _freeze_long_lived_objects() -> None:
    """Exclude the objects of the start, which live as long as the server, from garbage collection.

    Requests trigger full collections, which would otherwise pause the process for up to half a second.
    """
    gc.collect()
    gc.freeze()


def _on_signal(number: int, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        log.warning("stopping immediately", extra={"signal": signal.Signals(number).name})
        os._exit(128 + number)
    log.info("stopping", extra={"signal": signal.Signals(number).name})
    stopping.set()


def _url(config: ServerConfig, port: int) -> str:
    """The URL of the API on this machine."""
    host = "localhost" if config.host in ("0.0.0.0", "::") else config.host  # noqa: S104  compared, not bound
    scheme = "http" if config.tls_cert_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{config.root_path or ''}"


async def _log_when_ready(engine: Engine, url: str) -> None:
    """Log when the engine is ready, with the URLs of its page and its API."""
    await until_loaded(engine)
    if engine.state is EngineState.READY:
        log.info("ready", extra={"page": f"{url}/", "api": f"{url}/v1"})


def _raise_open_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, up to MAX_OPEN_FILES. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MAX_OPEN_FILES:
        soft = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


class PortServer:
    """A server for one port and its application."""

    def __init__(self, app: ASGIApp, listener: socket.socket, limits: ServerLimits, tls: Tls | None) -> None:
        self.port: int = listener.getsockname()[1]
        self.http = _HttpServer(
            HttpConfig(
                app,
                limits,
                None if tls is None else tls.context,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                proxy_headers=False,  # otherwise a local client could forge its address and get more fair-share rounds
                server_header=False,
                date_header=False,
                timeout_keep_alive=math.ceil(limits.head_timeout_s),
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            )
        )
        self.serving = asyncio.create_task(self.http.serve(sockets=[listener]))


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and its periodic tick, so that an idle server does not wake up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    async def wait_for_clients(self, within_s: float, idle_s: float) -> None:
        """Wait up to `within_s` until every connection has ended: with the next reply that can announce it, or after
        `idle_s` without a request.

        A client that keeps its connection gets no other notice that the server stops. It may have sent its next request
        when the current reply ends, so a reply that has begun without the announcement does not end the connection.
        """
        cast(HttpConfig, self.config).is_leaving = True
        connections = cast("set[Connection]", self.server_state.connections)
        for connection in connections:
            connection.end_with_reply()
        loop = asyncio.get_running_loop()
        idle_since: dict[Connection, float] = {}
        until = loop.time() + within_s
        while connections and (now := loop.time()) < until:
            for connection in list(connections):
                if not connection.is_idle:
                    idle_since.pop(connection, None)
                elif now - idle_since.setdefault(connection, now) >= idle_s:
                    connection.shutdown()
            await asyncio.sleep(LEAVE_LOOK_S)

    def stop(self) -> None:
        """Stop listening, wait for open replies, and return from serve()."""
        self._stop_requested.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._stop_requested.wait()
