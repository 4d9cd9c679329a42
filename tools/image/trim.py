"""Remove from an image the files that the server never loads, and check that the rest is complete.

The image's own Python runs it, with only the standard library and binutils:  python3 trim.py VIRTUAL_ENVIRONMENT
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NEVER_LOADED = {
    # Headers for extensions, a message compiler, and linear algebra, which no model here uses.
    "torch": ("include", "bin/protoc*", "lib/libtorch_cuda_linalg.so"),
    # The profiler, with all of CUPTI, and programs that only display compiled code.
    "triton": (
        "_C/libproton.so",
        "backends/nvidia/bin/cuobjdump",
        "backends/nvidia/bin/nvdisasm",
        "backends/nvidia/lib/cupti",
        "instrumentation",
    ),
    # Solvers over several GPUs, profilers, and copies of libraries for CUDA programs that are not in the image.
    "nvidia/cu13/lib": (
        "libcheckpoint.so",
        "libcufftw.so.*",
        "libcusolverMg.so.*",
        "libnvblas.so.*",
        "libnvperf_*.so",
        "libnvrtc*.alt.so.*",
        "libpcsamplingutil.so",
    ),
    # Convolutions and similar operations: libcudnn.so.9, which torch is linked with, loads them on demand.
    "nvidia/cudnn": ("include", "lib/libcudnn_*.so.9"),
    # Libraries that kernels for communication between GPUs are linked with.
    "nvidia/nvshmem": ("include", "lib/libnvshmem_device.*"),
}
"""Folders of site-packages → patterns of files to remove. A pattern that matches nothing ends the build."""

UNSTRIPPED = ("triton/_C/libtriton.so",)
"""Libraries with debug symbols, which take half of their size and are never loaded."""


def main(environment: str) -> None:
    (site,) = Path(environment).glob("lib/python3*/site-packages")
    gone = [path for folder in NEVER_LOADED if (site / folder).is_dir() for path in never_loaded(site, folder)]
    libraries = {found.name for path in gone for found in [path, *path.rglob("*")]}
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in UNSTRIPPED:
        if (site / name).exists():
            subprocess.run(["strip", "--strip-debug", site / name], check=True, timeout=300)
    for path, needed in broken_links(site, libraries):
        sys.exit(f"trim: {path} stays, and is linked with {needed}, which is taken out: correct NEVER_LOADED")
    for package in NEVER_LOADED:
        if "/" not in package and (site / package).is_dir():
            python = Path(environment, "bin/python3")
            subprocess.run([python, "-B", "-c", f"import {package}"], check=True, timeout=300)


def never_loaded(site: Path, folder: str) -> Iterator[Path]:
    for pattern in NEVER_LOADED[folder]:
        found = sorted((site / folder).glob(pattern))
        if not found:
            sys.exit(f"trim: nothing is {folder}/{pattern}: another version has other files, correct NEVER_LOADED")
        yield from found


def broken_links(site: Path, gone: set[str]) -> Iterator[tuple[Path, str]]:
    """Libraries below `site` that need one of `gone` from the dynamic linker."""
    for path in site.rglob("*.so*"):
        for needed in linked_with(path):
            if needed in gone:
                yield path.relative_to(site), needed


def linked_with(path: Path) -> list[str]:
    """Names of the libraries that a library is linked with. Empty for other files."""
    output = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, timeout=60, check=False)
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
