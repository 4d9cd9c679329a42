"""The wait for a step on a device continues as long as the step makes progress, and ends otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ballast.errors import EngineDeadError
from ballast.host.stream_signals import StreamSignals
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.faults.device_wait import wait_for

LIMIT_S = 0.05


@dataclass
class EventAfter:
    """Happens after a given number of queries; None: never."""

    queries: int | None
    num_requested: int = 0

    def query(self) -> bool:
        self.num_requested += 1
        return self.queries is not None and self.num_requested > self.queries


def test_each_event_counts_as_progress() -> None:
    events = [EventAfter(queries) for queries in (0, 3, 0, 2)]
    requested_at_progress: list[list[int]] = []
    wait_for(events, lambda: requested_at_progress.append([event.num_requested for event in events]))
    assert requested_at_progress == [[1, 0, 0, 0], [1, 4, 0, 0], [1, 4, 1, 0], [1, 4, 1, 3]]


def test_a_hanging_device_ends_the_step() -> None:
    num_reported = 0

    def progressed() -> None:
        nonlocal num_reported
        num_reported += 1

    events = [EventAfter(0), EventAfter(2), EventAfter(None), EventAfter(0)]
    with pytest.raises(EngineDeadError, match=r"not reached event 3 of the step for 0\.05 s"):
        wait_for(events, progressed, LIMIT_S)
    assert num_reported == 2


def test_many_events_may_take_longer_than_the_limit_of_one(monkeypatch) -> None:
    class ClockOfLooks:
        """A clock that advances one second per query."""

        def __init__(self) -> None:
            self._looks = 0.0

        @classmethod
        def for_limit(cls, limit_s: float) -> ClockOfLooks:
            return cls()

        def now(self) -> float:
            self._looks += 1
            return self._looks

    monkeypatch.setattr(device_wait, "AwakeClock", ClockOfLooks)
    wait_for([EventAfter(9) for _ in range(3)], lambda: None, 10)
    with pytest.raises(EngineDeadError, match="event 2 "):
        wait_for([EventAfter(9), EventAfter(11)], lambda: None, 10)


def test_the_error_of_a_failed_device_is_raised() -> None:
    class Failed(EventAfter):
        def query(self) -> bool:
            raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        wait_for([EventAfter(1), Failed(None)], lambda: None)


@pytest.mark.gpu
def test_a_hanging_stream_on_a_gpu() -> None:
    stream, words, signals = torch.cuda.Stream(), torch.zeros(1, dtype=torch.int32, pin_memory=True), StreamSignals()
    with torch.cuda.stream(stream):
        before = stream.record_event()
        signals.await_word(words, 0)
        after = stream.record_event()
    try:
        with pytest.raises(EngineDeadError, match="event 2 "):
            wait_for([before, after], lambda: None, LIMIT_S)
    finally:
        words[0] = 1  # the device continues
    wait_for([after], lambda: None)
