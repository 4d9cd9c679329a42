"""How a peer engine was built, for the records of comparisons."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KEPT = (
    "CMAKE_BUILD_TYPE",
    "CMAKE_CUDA_ARCHITECTURES",
    "GGML_NATIVE",
    "GGML_CUDA",
    "GGML_AVX2",
    "GGML_AVX512",
    "GGML_AMX_INT8",
    "GGML_AMX_BF16",
)
PROGRAM_TIMEOUT_S = 900


def build_options(build_bin: Path) -> str:
    """The CMake options that affect speed, from the cache next to the folder of programs. Empty without one."""
    found = _cache_of(build_bin)
    return " ".join(f"-D{name}={found[name]}" for name in KEPT if found.get(name))


def source_of_build(build_bin: Path) -> Path:
    """The folder that was built. Ends this program if CMake's cache does not name one that is still there."""
    source = _cache_of(build_bin).get("CMAKE_HOME_DIRECTORY")
    if source is None or not Path(source).is_dir():
        sys.exit(f"{build_bin}: CMakeCache.txt in the folder above names no source that is there: {source}")
    return Path(source)


def _cache_of(build_bin: Path) -> dict[str, str]:
    """CMake's cache next to the folder of programs. Empty without one."""
    cache = build_bin.resolve().parent / "CMakeCache.txt"
    if not cache.is_file():
        return {}
    found = {}
    for line in cache.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        found[name.partition(":")[0]] = value
    return found


def version_of(program: Path) -> str:
    """The version that a program of llama.cpp or a fork prints."""
    lines = output_of([program, "--version"]).splitlines()
    return next((line.removeprefix("version: ") for line in lines if line.startswith("version: ")), "unknown")


def output_of(command: Sequence[object], directory: Path | None = None) -> str:
    """Both output streams of a program. If it fails, exit with its last output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
    )
    if done.returncode != 0:
        sys.exit(f"{command[0]} exited with {done.returncode}; its last output:\n{done.stdout[-2000:]}")
    return done.stdout
