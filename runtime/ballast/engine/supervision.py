"""Waits on an event loop until an engine is loaded, watches it, and stops it."""

from __future__ import annotations

import asyncio
import logging

from ballast.engine.engine import Engine, EngineState
from ballast.engine.publishing import LONGEST_LOOK_S
from ballast.errors import BallastError, EngineDeadError

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""How often the state of a loading engine is read: it is set on a thread without an event loop."""
FATAL_SILENCE_S = 120.0
"""An engine that makes no progress for this long although it has work is declared dead."""
STUCK_S = 10.0
"""How long an engine may take to end its step once the time to drain is over."""


async def until_loaded(engine: Engine) -> None:
    """Wait until the engine is ready, stopped or dead."""
    while engine.state is EngineState.LOADING:  # noqa: ASYNC110  set on a thread without an event loop
        await asyncio.sleep(LOOK_S)


async def watch_for_hang(engine: Engine, fatal_silence_s: float = FATAL_SILENCE_S) -> None:
    """Declare a hanging engine dead. If it waits forever for a device, its requests would wait forever too.

    Looks often, since the engine takes a long time without a look for a pause of the process.
    """
    while engine.failure is None:
        await asyncio.sleep(min(LONGEST_LOOK_S / 2, fatal_silence_s / 4))
        silence_s = engine.snapshot().silence_s
        if silence_s > fatal_silence_s:
            engine.declare_dead(f"the engine hangs: no progress for {silence_s:.0f} s although requests are held")


async def stop_engine(engine: Engine, drain_timeout_s: float, stuck_s: float = STUCK_S) -> bool:
    """Drain the engine up to `drain_timeout_s`; new requests are refused meanwhile.

    Returns False if the engine still holds its requests: it is loading, or still in a step `stuck_s` after that.
    """
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


def failure_reason(failure: BaseException) -> BallastError:
    """The error that a process ends with whose engine `failure` has killed."""
    return failure if isinstance(failure, BallastError) else EngineDeadError.because_of(failure)
