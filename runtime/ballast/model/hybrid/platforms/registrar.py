"""Page-locks host memory for a GPU."""

from __future__ import annotations

import ctypes
from typing import Protocol


class Registrar(Protocol):
    """Page-locks memory for a GPU. Both methods raise OSError when the driver refuses."""

    def register(self, address: int, num_bytes: int) -> None: ...

    def unregister(self, address: int) -> None: ...


class CudaRegistrar:
    """Registers through CUDA's driver API rather than its runtime API, in which a refusal would leave an error for the
    next call. The calling thread must have a device."""

    _PORTABLE = 1
    _DEVICE_MAP = 2

    def __init__(self) -> None:
        """Raises OSError when the driver is not installed."""
        driver = ctypes.CDLL("libcuda.so.1")
        self._register = driver.cuMemHostRegister_v2
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._unregister = driver.cuMemHostUnregister
        self._unregister.argtypes = (ctypes.c_void_p,)

    def register(self, address: int, num_bytes: int) -> None:
        self._check("cuMemHostRegister", self._register(address, num_bytes, self._PORTABLE | self._DEVICE_MAP))

    def unregister(self, address: int) -> None:
        self._check("cuMemHostUnregister", self._unregister(address))

    @staticmethod
    def _check(call: str, status: int) -> None:
        if status != 0:
            raise OSError(f"{call} failed with code {status} of CUDA's driver")
