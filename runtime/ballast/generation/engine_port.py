"""The interface of an engine to the server. `ballast.engine.engine.Engine` implements it; tests have another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ballast.engine.engine import EngineState
from ballast.engine.limits import Limits
from ballast.engine.publishing import Snapshot
from ballast.engine.request import Output, Request


class OutputStream(Protocol):
    """The outputs of requests that were submitted together; see `ballast.engine.stream.RequestStream`."""

    async def __anext__(self) -> Output:
        """The next output. Raises CapacityError or EngineDeadError if the engine ended the request early."""

    def abort(self, index: int | None = None) -> None:
        """Abort one of the requests, or all. Idempotent."""


class EnginePort(Protocol):
    """The engine's interface to HTTP handlers."""

    limits: Limits
    count_arriving: Callable[[], int]
    """Returns the number of requests that are being tokenised; the server sets it."""

    @property
    def state(self) -> EngineState:
        """The state in the engine's lifecycle."""

    @property
    def load_progress(self) -> float:
        """Fraction of the model that is loaded, 0…1."""

    @property
    def start_seconds(self) -> Mapping[str, float]:
        """Seconds of the start by phase; empty until the engine is ready."""

    @property
    def failure(self) -> BaseException | None:
        """The error that killed the engine; None while it is not dead."""

    def check_room(self, priority: int, client: int) -> None:
        """Raise CapacityError if `submit` would refuse a request of one token now."""

    def submit(self, *requests: Request) -> OutputStream:
        """Queue requests, all or none. Raises RequestError, CapacityError, EngineDeadError."""

    def snapshot(self) -> Snapshot:
        """The engine's numbers now."""

    def describe(self) -> Sequence[dict[str, object]]:
        """One entry per request: all running requests, and the first waiting ones."""
