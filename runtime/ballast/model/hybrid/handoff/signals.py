"""How the device raises and awaits words of host memory, in the order of what it computes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.errors import EngineDeadError


class Signals(Protocol):
    """Words are zero or one. Calls return at once where the device has a queue: what they ask for happens there, after
    what was asked before."""

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        """Make a word one."""

    def await_word(self, words: torch.Tensor, index: int) -> None:
        """Wait until a word is one, and make it zero."""

    def check(self) -> None:
        """Raises what the device has failed with, if it has."""


class HostSignals:
    """For a model whose device is the CPU: the calling thread does it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        _view(words)[index] = 1

    def await_word(self, words: torch.Tensor, index: int) -> None:
        view = _view(words)
        end = time.monotonic() + self._limit_s
        while view[index] == 0:
            if time.monotonic() > end:
                raise EngineDeadError(f"the experts of routed layer {index} were not done within {self._limit_s} s")
            time.sleep(0)
        view[index] = 0

    def check(self) -> None:
        pass  # whatever fails here fails where it is called


class StreamSignals:
    """For a CUDA device: stream memory operations of the driver, on torch's current stream. Graphs may capture them.

    CUDA driver API, "Stream Memory Operations": cuStreamWriteValue32 writes after everything before it in the stream is
    visible to the host; cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_EQ holds up what follows.
    """

    _WAIT_EQUAL = 1
    _DEFAULT = 0

    def __init__(self, driver: ctypes.CDLL | None = None) -> None:
        """Raises EngineDeadError when the driver is not there or lacks the operations."""
        try:
            driver = driver or ctypes.CDLL("libcuda.so.1")
            self._write = _operation(driver, "cuStreamWriteValue32_v2")
            self._wait = _operation(driver, "cuStreamWaitValue32_v2")
        except (OSError, AttributeError) as error:
            raise EngineDeadError(f"CUDA's driver offers no stream memory operations here: {error}") from error

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        self._call(self._write, words, index, 1, self._DEFAULT)

    def await_word(self, words: torch.Tensor, index: int) -> None:
        self._call(self._wait, words, index, 1, self._WAIT_EQUAL)
        self._call(self._write, words, index, 0, self._DEFAULT)

    def check(self) -> None:
        torch.cuda.current_stream().query()

    def _call(self, operation: Callable[..., int], words: torch.Tensor, index: int, value: int, flags: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        status = operation(stream, words.data_ptr() + 4 * index, value, flags)
        if status != 0:
            raise EngineDeadError(f"a stream memory operation of CUDA's driver failed with code {status}")


def _operation(driver: ctypes.CDLL, name: str) -> Callable[..., int]:
    operation = getattr(driver, name)
    operation.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    operation.restype = ctypes.c_int
    found: Callable[..., int] = operation
    return found


def _view(words: torch.Tensor) -> NDArray[np.int32]:
    view: NDArray[np.int32] = words.numpy()
    return view
