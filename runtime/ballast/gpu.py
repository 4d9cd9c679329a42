"""CUDA devices, asked of torch, which is imported here only when somebody wants one."""

from __future__ import annotations

import ctypes
import os
import shutil
import sysconfig
from pathlib import Path

from ballast.errors import ConfigError


def check_device(name: str) -> None:
    """Raises ConfigError when `name`, "cuda:N", cannot be computed on here. Anything else passes."""
    reason = why_unusable(name) if name.startswith("cuda") else None
    if reason is not None:
        raise ConfigError("device", name, f"{reason}; device=cpu needs none")


def auto_device() -> tuple[str, str]:
    """What device=auto means here, and why: the first GPU where it can be used, or the CPU. torch, which takes seconds
    and hundreds of megabytes, is imported only where the driver knows a GPU."""
    if num_driver_devices() == 0:
        return "cpu", "NVIDIA's driver and a GPU for it are not here"
    reason = why_unusable("cuda:0")
    return ("cuda:0", "a GPU is here") if reason is None else ("cpu", f"the GPU cannot be used: {reason}")


def num_driver_devices() -> int:
    """GPUs that CUDA's driver offers this process; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    # CUDA driver API: both return 0 on success.
    is_known = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if is_known else 0


def why_unusable(name: str) -> str | None:
    """Why there is no computing on "cuda:N" here, as a sentence; None when there is."""
    try:
        import torch
    except ImportError:
        return "torch is not installed; it comes with the extra ballast-serve[runtime]"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return f"there is no CUDA device that torch {torch.__version__} can use here"
    if _index(name) >= count:
        return f"there are {count} CUDA devices here, counted from 0"
    has_compiler = "CC" in os.environ or shutil.which("gcc") or shutil.which("clang")
    if not has_compiler or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Triton needs a C compiler and Python's header files to start; on Debian and Ubuntu: gcc, python3-dev"
    return None


def free_vram(name: str) -> int | None:
    """Bytes that are free on "cuda:N"; None where it cannot be used."""
    if why_unusable(name) is not None:
        return None
    import torch

    free, _ = torch.cuda.mem_get_info(_index(name))
    return int(free)


def taken_vram(name: str) -> tuple[int, int]:
    """Bytes on "cuda:N" that torch's tensors have, and that its allocator has taken. Does not ask the device."""
    import torch

    index = _index(name)
    return torch.cuda.memory_allocated(index), torch.cuda.memory_reserved(index)


def _index(name: str) -> int:
    return int(name.partition(":")[2])
