"""Host memory that a GPU can copy at the speed of the bus while it computes.

The driver's own allocation clears such memory at about 3 GB/s under a lock that blocks all other work on the GPU: with
24 GiB, loading stopped for 8 seconds. Here the system clears huge pages first, and the driver only locks them.
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

import numpy as np

from ballast.host.machine import read_memory
from ballast.model.hybrid.platforms.interface import Bytes
from ballast.model.hybrid.platforms.registrar import Registrar


def take_pinned(registrar: Registrar, num_bytes: int) -> Bytes:
    """Allocate zeros [num_bytes]. They are released when nothing refers to them any more. The calling thread must have
    a device. Raises MemoryError if the system or the driver refuses."""
    available = read_memory().available_bytes
    if num_bytes > available:  # the system would not refuse: it would kill a process once the pages are used
        raise MemoryError(f"{num_bytes} bytes of host memory were refused ({available} are available)")
    try:
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes of host memory were refused ({error})") from error
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:: mmap.PAGESIZE] = 0  # this thread touches the pages, and holds no lock while it does
    address = array.ctypes.data
    try:
        registrar.register(address, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes of host memory were refused ({error})") from error
    weakref.finalize(array, _unregister, registrar, address).atexit = False  # the process's end does it faster
    return array


def _unregister(registrar: Registrar, address: int) -> None:
    with suppress(OSError):  # a lost device refuses
        registrar.unregister(address)
