"""Threads that keep something busy while a block looks at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def at_work(tasks: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Each in a thread of its own until the block ends, which sets its event; what one of them raises ends the block
    too."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(tasks)) as pool:
        working = [pool.submit(task, stop) for task in tasks]
        try:
            yield
        finally:
            stop.set()
        for each in working:
            each.result()
