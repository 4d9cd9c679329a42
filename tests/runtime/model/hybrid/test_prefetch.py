"""No buffer is overwritten while it is in use, and none is used before it is full, however late either stream is. The
tests run all orders of two streams that their events allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ballast.model.hybrid.streaming.prefetch import Prefetch
from devkit.models.cpu_platform import HostStream

Event = tuple["LateStream", int]


@dataclass(eq=False)
class LateStream:
    """A stream that runs only in `advance`: one queued operation per call, as far as events allow."""

    requested: list[Callable[[], None] | Event] = field(default_factory=list)
    num_done: int = 0

    def record_event(self) -> Event:
        return self, len(self.requested)

    def wait_event(self, event: Event) -> None:
        self.requested.append(event)

    def can_advance(self) -> bool:
        if self.num_done == len(self.requested):
            return False
        following = self.requested[self.num_done]
        return callable(following) or following[0].num_done >= following[1]

    def advance(self) -> None:
        following = self.requested[self.num_done]
        if callable(following):
            following()
        self.num_done += 1


class Device:
    """Buffers, a stream that copies into them and two that compute with them, one at a time; each use takes two calls
    of `advance`."""

    def __init__(self, num_pieces: int, num_buffers: int) -> None:
        self.copies, self.compute, self.other_compute = LateStream(), LateStream(), LateStream()
        self.buffers: list[int | None] = [None] * num_buffers
        self.computed: list[int] = []
        self.num_pieces = num_pieces
        self.prefetch = Prefetch(num_buffers, self._load, self.copies, lambda: self.compute)

    def _load(self, piece: int, buffer: int) -> None:
        self.copies.requested += [lambda: self._set(buffer, None), lambda: self._set(buffer, piece)]

    def _set(self, buffer: int, piece: int | None) -> None:
        self.buffers[buffer] = piece

    def use(self, piece: int) -> None:
        buffer = self.prefetch.take(piece)
        self.compute.requested += [lambda: self._check(buffer, piece), lambda: self._check(buffer, piece)]
        self.compute.requested.append(lambda: self.computed.append(piece))
        self.prefetch.done()

    def _check(self, buffer: int, piece: int) -> None:
        assert self.buffers[buffer] == piece

    def run(self, rng: random.Random, copies_share: float) -> None:
        """Run both streams to their end, in a random order."""
        every = self.copies, self.compute, self.other_compute
        while streams := [stream for stream in every if stream.can_advance()]:
            prefers = self.copies if rng.random() < copies_share else rng.choice(every[1:])
            (prefers if prefers in streams else streams[0]).advance()
        assert [stream.num_done for stream in every] == [len(stream.requested) for stream in every]


@pytest.mark.parametrize(("num_pieces", "num_buffers"), [(1, 1), (5, 1), (7, 2), (9, 4), (3, 8)])
@pytest.mark.parametrize("copies_share", [0.02, 0.5, 0.98])
def test_computation_uses_every_piece_unchanged(num_pieces: int, num_buffers: int, copies_share: float) -> None:
    rng = random.Random(num_pieces)
    for _ in range(20):
        device = Device(num_pieces, num_buffers)
        for _ in range(2):
            device.prefetch.begin(range(device.num_pieces))
            for piece in range(num_pieces):
                device.use(piece)
        device.run(rng, copies_share)
        assert device.computed == [*range(num_pieces)] * 2


def test_an_abandoned_pass_does_not_affect_the_next_one() -> None:
    rng = random.Random(0)
    for given_up_after in range(6):
        device = Device(6, 3)
        device.prefetch.begin(range(device.num_pieces))
        for piece in range(given_up_after):
            device.use(piece)
        device.prefetch.begin(range(device.num_pieces))
        for piece in range(6):
            device.use(piece)
        device.run(rng, 0.5)
        assert device.computed == [*range(given_up_after), *range(6)]


@pytest.mark.parametrize("copies_share", [0.02, 0.5, 0.98])
def test_passes_over_some_pieces_may_compute_on_different_streams(copies_share: float) -> None:
    rng = random.Random(1)
    passes = [0, 1, 2, 3, 4, 5], [1, 4], [0, 2, 3, 5], [5]
    for _ in range(20):
        device = Device(6, 3)
        used = []
        for pieces in passes:
            used_here = pieces[: rng.randrange(len(pieces) + 1)]
            device.compute, device.other_compute = device.other_compute, device.compute
            device.prefetch.begin(pieces)
            for piece in used_here:
                device.use(piece)
            used += used_here
        device.run(rng, copies_share)
        assert sorted(device.computed) == sorted(used)


def test_copies_run_ahead_by_the_number_of_buffers() -> None:
    loads: list[tuple[int, int]] = []
    prefetch = Prefetch(2, lambda piece, buffer: loads.append((piece, buffer)), HostStream(), HostStream)
    prefetch.begin(range(5))
    assert loads == [(0, 0), (1, 1)]
    assert prefetch.take(0) == 0
    assert len(loads) == 2
    prefetch.done()
    assert loads[2:] == [(2, 0)]
    for piece in range(1, 5):
        assert prefetch.take(piece) == piece % 2
        prefetch.done()
    assert loads[3:] == [(3, 1), (4, 0)]
