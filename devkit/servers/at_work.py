"""Threads that generate load while a block of code makes observations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def at_work(tasks: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Run each task in its own thread until the block ends, which sets the event that tasks get. The block re-raises an
    exception from a task."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(tasks)) as pool:
        working = [pool.submit(task, stop) for task in tasks]
        try:
            yield
        finally:
            stop.set()
        for each in working:
            each.result()
