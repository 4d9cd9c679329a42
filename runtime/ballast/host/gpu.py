"""CUDA devices. torch is imported only when a device is needed."""

from __future__ import annotations

import ctypes
import os
import shutil
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ballast.errors import ConfigError, EngineDeadError, first_line, how_to_install


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A device as CUDA's driver names it."""

    product: str
    pci_address: str
    """As in /sys/bus/pci/devices, such as "0000:c1:00.0"."""


def check_device(name: str) -> None:
    """Raises ConfigError if `name` is a "cuda:N" that cannot be used here. Other names are accepted."""
    reason = why_unusable(name) if name.startswith("cuda") else None
    if reason is not None:
        raise ConfigError("device", name, f"{reason}; device=cpu does not need a GPU")


def auto_device() -> tuple[str, str]:
    """The device that device=auto selects here, and why: the first GPU if it can be used, otherwise the CPU.

    Importing torch takes seconds and hundreds of megabytes, so it is imported only if the driver reports a GPU.
    """
    reason = why_no_driver_device()
    if reason is not None:
        return "cpu", reason
    reason = why_unusable("cuda:0")
    if reason is not None:
        return "cpu", f"the GPU cannot be used: {reason}"
    count = num_visible_gpus()
    return "cuda:0", "this machine has a GPU" if count <= 1 else f"the first of {count} GPUs; device=cuda uses all"


def why_no_driver_device() -> str | None:
    """Why CUDA's driver does not offer a GPU to this process, as a sentence; None if it does."""
    count = _driver_devices()
    return count if isinstance(count, str) else None


def num_visible_gpus() -> int:
    """Number of GPUs that CUDA's driver offers to this process; 0 if it offers none or cannot say."""
    count = _driver_devices()
    return count if isinstance(count, int) else 0


def _driver_devices() -> int | str:
    """Number of GPUs, at least 1, or why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "NVIDIA's driver or a GPU is missing"
    count, text = ctypes.c_int(0), ctypes.c_char_p()
    # CUDA driver API: all functions return 0 on success.
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code == 0:
        return count.value or "NVIDIA's driver has no GPU for this process"
    driver.cuGetErrorString(code, ctypes.byref(text))
    return f"NVIDIA's driver reports: {text.value.decode() if text.value else f'error {code}'}"


@cache
def identify_gpu(name: str) -> GpuIdentity | None:
    """What CUDA's driver knows about "cuda:N", without using the device; None if the driver does not offer it, and for
    other devices."""
    if not name.startswith("cuda:") or num_visible_gpus() <= _index(name):
        return None
    driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    product, address = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
    code = (
        driver.cuDeviceGet(ctypes.byref(device), _index(name))
        or driver.cuDeviceGetName(product, len(product), device)
        or driver.cuDeviceGetPCIBusId(address, len(address), device)
    )
    return None if code else GpuIdentity(product.value.decode(), address.value.decode().lower())


def driver_library() -> Path:
    """The file of CUDA's driver that this process has loaded. Raises OSError if there is none."""
    ctypes.CDLL("libcuda.so.1")
    mapped = (line.rpartition(" ")[2] for line in Path("/proc/self/maps").read_text().splitlines())
    return next(Path(path) for path in mapped if Path(path).name.startswith("libcuda.so"))


def why_unusable(name: str) -> str | None:
    """Why "cuda:N" cannot be used here, as a sentence; None if it can."""
    try:
        import torch
    except ImportError:
        return f"torch is not installed; {how_to_install('runtime')}"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return f"torch {torch.__version__} finds no CUDA device here: {_why_torch_has_none()}"
    if _index(name) >= count:
        return f"there are {count} CUDA devices here, counted from 0"
    has_compiler = "CC" in os.environ or shutil.which("gcc") or shutil.which("clang")
    if not has_compiler or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Triton needs a C compiler and Python's header files to start; on Debian and Ubuntu: gcc, python3-dev"
    return _why_it_cannot_wait(_index(name))


@cache
def _why_it_cannot_wait(index: int) -> str | None:
    """Why a device cannot wait for the CPU within a stream; None if it can.

    The operations are tried, because some drivers have them but refuse them, as under WSL2 and on some virtual GPUs.
    """
    import torch

    from ballast.host.stream_signals import StreamSignals

    try:
        with torch.cuda.device(index):
            words = torch.zeros(1, dtype=torch.int32, pin_memory=True)
            signals = StreamSignals()
            signals.raise_word(words, 0)
            signals.await_word(words, 0)
            torch.cuda.current_stream().synchronize()
    except (RuntimeError, EngineDeadError) as error:
        return f"it cannot wait for the CPU: {first_line(error)}"
    return None


def free_vram(name: str) -> int | None:
    """Free bytes on "cuda:N"; None if the device cannot be used."""
    if why_unusable(name) is not None:
        return None
    import torch

    free, _ = torch.cuda.mem_get_info(_index(name))
    return int(free)


def total_vram(name: str) -> int | None:
    """Bytes of memory on "cuda:N"; None if the device cannot be used."""
    if why_unusable(name) is not None:
        return None
    import torch

    _, total = torch.cuda.mem_get_info(_index(name))
    return int(total)


def taken_vram(name: str) -> tuple[int, int]:
    """(bytes in torch's tensors, bytes held by torch's allocator) on "cuda:N". Does not call the device."""
    import torch

    index = _index(name)
    return torch.cuda.memory_allocated(index), torch.cuda.memory_reserved(index)


def _why_torch_has_none() -> str:
    """torch's own explanation, such as a driver that is too old or a build without CUDA."""
    import torch

    try:
        torch.cuda.current_device()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition(". ")[0].partition("\n")[0]
    return "none is visible to this process"


def _index(name: str) -> int:
    return int(name.partition(":")[2])
