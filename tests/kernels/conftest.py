import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.models.random_blocks import dequantized, random_blocks

MakeMatrix = Callable[[int, int, int], tuple[kernels.Matrix, NDArray[np.float64]]]


def pytest_collection_finish() -> None:
    """Torch's kernels on the CPU need a platform. Other tests do not import torch, which QEMU takes long for."""
    if "torch" in sys.modules:
        from devkit.models import cpu_platform as cpu_platform


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture(scope="session")
def pool() -> kernels.ThreadPool:
    return kernels.ThreadPool(2)


@pytest.fixture
def make_matrix(rng: np.random.Generator) -> MakeMatrix:
    """(ggml_type, rows, cols) → a random matrix and its values in float64."""

    def make(ggml_type: int, rows: int, cols: int) -> tuple[kernels.Matrix, NDArray[np.float64]]:
        data = random_blocks(rng, ggml_type, rows, cols)
        return kernels.Matrix(data, ggml_type, rows, cols), dequantized(data, ggml_type).astype(np.float64)

    return make


@pytest.fixture
def kept_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton compiles in the test is kept for later runs, by its source, options and Triton's version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballast"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache / "triton"))
    monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", "0")  # tests read the intermediate code
