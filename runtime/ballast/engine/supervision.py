"""Waits on an event loop until an engine is loaded, watches it, and stops it."""

from __future__ import annotations

import asyncio
import logging

from ballast.engine.engine import Engine, EngineState
from ballast.engine.publishing import LONGEST_LOOK_S
from ballast.errors import BallastError, EngineDeadError

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""Polling interval for the state of a loading engine, which is set on a thread without an event loop."""
FATAL_SILENCE_S = 120.0
"""An engine that has work but makes no progress for this long is declared dead."""
STUCK_S = 10.0
"""How long an engine may take to end its step after the drain timeout."""


async def until_loaded(engine: Engine) -> None:
    """Wait until the engine is ready, stopped or dead."""
    while engine.state is EngineState.LOADING:  # noqa: ASYNC110  set on a thread without an event loop
        await asyncio.sleep(LOOK_S)


async def watch_for_hang(engine: Engine, fatal_silence_s: float = FATAL_SILENCE_S) -> None:
    """Declare a hanging engine dead, so that its requests do not wait forever.

    Polls often, because a long gap between two readings counts as a pause of the process.
    """
    while engine.failure is None:
        await asyncio.sleep(min(LONGEST_LOOK_S / 2, fatal_silence_s / 4))
        silence_s = engine.snapshot().silence_s
        if silence_s > fatal_silence_s:
            engine.declare_dead(f"the engine hangs: no progress for {silence_s:.0f} s while it holds requests")


async def stop_engine(engine: Engine, drain_timeout_s: float, stuck_s: float = STUCK_S) -> bool:
    """Drain the engine up to `drain_timeout_s`; new requests are refused meanwhile.

    Returns False if the engine still holds requests: it is loading, or its step did not end within `stuck_s` more.
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
    """The error with which the process ends if `failure` killed its engine."""
    return failure if isinstance(failure, BallastError) else EngineDeadError.because_of(failure)
