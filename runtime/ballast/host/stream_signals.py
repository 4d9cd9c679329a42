"""CUDA's stream memory operations: within a stream, a device waits for a value in memory or writes one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ballast.errors import EngineDeadError


class StreamSignals:
    """Stream memory operations on torch's current stream. CUDA graphs can capture them.

    CUDA driver API, "Stream Memory Operations": cuStreamWriteValue32 writes after everything before it in the stream is
    visible to the host; cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_EQ blocks everything after it.
    """

    _WAIT_EQUAL = 1
    _DEFAULT = 0

    def __init__(self, driver: ctypes.CDLL | None = None) -> None:
        """Raises EngineDeadError if the driver is missing or does not have the operations."""
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

    def check(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).query()

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
