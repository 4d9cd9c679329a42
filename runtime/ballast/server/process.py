"""The server's process: it listens at once, tells when the engine is ready, drains when told to, and ends with a code
that says why."""

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

import uvicorn
import uvloop
from starlette.types import ASGIApp

from ballast.config import ServerConfig
from ballast.ending import leave
from ballast.engine.engine import Engine, EngineState
from ballast.errors import BallastError, ConfigError, EngineDeadError
from ballast.server.connection import HttpConfig
from ballast.server.limits import ServerLimits
from ballast.server.tls import Tls

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

BACKLOG = 2048

FAREWELL_S = 5
"""What connections get to take their last bytes once no request is running."""

MAX_OPEN_FILES = 65536


# What the address itself is to blame for: it is not this machine's, or its kind is not spoken here.
_HOST_ERRORS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def listen(host: str, port: int, option: str = "port") -> socket.socket:
    """A socket that listens, so that a taken port is known before anything is loaded.

    Raises ConfigError that blames the host, or the port under the name of its `option`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError("host", host, f"not an address to listen on: {error.strerror}") from None
    except UnicodeError:
        raise ConfigError("host", host, "not an address to listen on: no host name can be spelled like this") from None
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
        reason = (
            "another process listens there; choose another port" if error.errno == errno.EADDRINUSE else error.strerror
        )
        raise ConfigError(option, port, f"cannot listen on {host}: {reason}") from None
    listener.setblocking(False)
    return listener


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets of one server."""

    api: socket.socket
    admin: socket.socket | None
    """None: the API's port serves everything."""


def listen_as(config: ServerConfig) -> Listeners:
    """The sockets that `config` asks for. Raises ConfigError."""
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
    """Served where there is a port for it."""


Build = Callable[[Callable[[], None], asyncio.Future[None]], tuple[Engine, Apps]]
"""Makes an engine and the applications around it. The arguments are what the engine is to call when it dies, and what
is done when requests that still run are to be failed."""


def run_server(build: Build, listeners: Listeners, tls: Tls | None, config: ServerConfig, limits: ServerLimits) -> None:
    """Serve until a signal or the engine's death. Returns after a clean stop.

    An engine that is dead, or hangs, fails its requests and ends the process: with the code of the BallastError that
    killed it, or as our own fault.
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

    leaving: asyncio.Future[None] = loop.create_future()
    engine, apps = build(on_death, leaving)
    _keep_out_of_collections()
    limits = replace(limits, max_connections=min(limits.max_connections, _raise_open_files() // 4))
    doors = [_Door(apps.api, listeners.api, limits, tls)]
    if listeners.admin is not None:
        doors.append(_Door(apps.admin, listeners.admin, limits, None))
    engine.start()
    for door in doors:
        door.serving.add_done_callback(lambda _: stopping.set())
    ports = dict(zip(("port", "admin_port"), (door.port for door in doors), strict=False))
    log.info("listening", extra={"host": config.host, **ports})
    tasks = [asyncio.create_task(_announce_ready(engine)), asyncio.create_task(_watch(engine, limits.fatal_silence_s))]
    async with contextlib.AsyncExitStack() as stack:
        if tls is not None:
            await stack.enter_async_context(tls.renewed())
        await stopping.wait()
    for task in tasks:
        task.cancel()
    stopped = await _stop_engine(engine, config.drain_timeout_s, limits.stuck_s)
    if not stopped:
        leaving.set_result(None)
    for door in doors:
        door.http.leave()
    await asyncio.gather(*(door.serving for door in doors))
    if engine.failure is not None:
        leave(_reason(engine.failure))
    log.info("stopped")
    if not stopped:
        # The engine's thread cannot be ended from here, and the interpreter would wait for threads that wait for it, or
        # that it has given work to: kernels to compile.
        logging.shutdown()
        os._exit(0)


def _keep_out_of_collections() -> None:
    """What lives as long as the server is not looked through for garbage: that takes up to half a second, in which
    nothing else runs, and comes whenever requests have left enough behind."""
    gc.collect()
    gc.freeze()


def _on_signal(number: int, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        log.warning("stopping at once", extra={"signal": signal.Signals(number).name})
        os._exit(128 + number)
    log.info("stopping", extra={"signal": signal.Signals(number).name})
    stopping.set()


async def _announce_ready(engine: Engine) -> None:
    """Say in the log when the engine begins to serve."""
    while engine.state is EngineState.LOADING:  # noqa: ASYNC110  it changes on a thread that knows no event loop
        await asyncio.sleep(0.1)
    if engine.state is EngineState.READY:
        log.info("ready")


async def _watch(engine: Engine, fatal_silence_s: float) -> None:
    """Give up an engine that hangs: one that waits for a device which never answers would hold its requests."""
    while engine.failure is None:
        await asyncio.sleep(fatal_silence_s / 4)
        silence_s = engine.snapshot().silence_s
        if silence_s > fatal_silence_s:
            engine.give_up(f"the engine hangs: no progress for {silence_s:.0f} s although requests are held")


async def _stop_engine(engine: Engine, drain_timeout_s: float, stuck_s: float) -> bool:
    """Let what is running end, up to the deadline; requests that come meanwhile are refused. False: it is loading, or
    still inside a step `stuck_s` after that, and holds its requests."""
    if engine.failure is not None:
        return True
    if engine.state is EngineState.LOADING:
        engine.begin_drain()
        return False
    try:
        async with asyncio.timeout(drain_timeout_s + stuck_s):
            await asyncio.to_thread(engine.stop, drain_timeout_s)
    except TimeoutError:
        log.warning("leaving while the engine is inside a step", extra={"waited_s": drain_timeout_s + stuck_s})
        return False
    return True


def _raise_open_files() -> int:
    """Allow as many open files as the system lets a process have, up to MAX_OPEN_FILES; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MAX_OPEN_FILES:
        soft = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def _reason(failure: BaseException) -> BallastError:
    return failure if isinstance(failure, BallastError) else EngineDeadError.because_of(failure)


class _Door:
    """One port and the application behind it."""

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
                server_header=False,
                date_header=False,
                timeout_keep_alive=math.ceil(limits.head_timeout_s),
                timeout_graceful_shutdown=FAREWELL_S,
            )
        )
        self.serving = asyncio.create_task(self.http.serve(sockets=[listener]))


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and without its clock: an idle server does not wake up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Stop listening, let open replies end, and return from serve()."""
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._leaving.wait()
