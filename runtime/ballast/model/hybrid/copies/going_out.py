"""What is being copied from a device's memory to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ballast.model.hybrid.faults.device_wait import Event, wait_for


class GoingOut:
    """Copies that have begun, in their order, and the ids of what they read. Ids are of one or several kinds, which
    come in the same order in all calls. Used by one thread."""

    def __init__(self) -> None:
        self._copies: deque[tuple[Event, tuple[frozenset[int], ...]]] = deque()

    def add(self, copy: Event, *read: Iterable[int]) -> None:
        """`copy` reads these ids."""
        self._copies.append((copy, tuple(map(frozenset, read))))

    def wait(self, alive: Callable[[], None], *written: Iterable[int]) -> None:
        """Wait until none of these ids is read any more, and call `alive` meanwhile. Raises EngineDeadError if a copy
        does not end."""
        while self._copies and self._copies[0][0].query():
            self._copies.popleft()
        own = tuple(map(frozenset, written))
        conflicts = (copy for copy, read in self._copies if any(map(frozenset.intersection, own, read)))
        wait_for(list(conflicts), alive)
