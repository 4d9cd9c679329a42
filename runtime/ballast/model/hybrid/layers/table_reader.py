"""Rows that a step needs of a matrix in the mapped file, such as its embedded tokens, decoded on several threads,
because the GPU waits for those of a long step."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.steps.slices import even_bounds

ROWS_A_THREAD = 512
"""Approximate minimum number of rows for which another thread pays, if they are in the page cache."""
MAX_THREADS = 8


class TableReader:
    """Reads the embedding of a model, or its n-gram table. Not thread-safe."""

    def __init__(self, matrix: kernels.Matrix, rows_a_thread: int | None = None) -> None:
        """matrix [rows, D]. `rows_a_thread`: approximate minimum number of rows for which another thread pays; None:
        ROWS_A_THREAD."""
        self._matrix = matrix
        self._rows_a_thread = rows_a_thread
        num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="ballast-embed")
        self._num_threads = num_threads

    def read(self, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Read the rows of ids [T] into `out` [T, D]. Raises IndexError for an id without a row."""
        least = ROWS_A_THREAD if self._rows_a_thread is None else self._rows_a_thread
        if len(ids) < 2 * least:
            kernels.embed(self._matrix, ids, out)
            return
        most = max(least, -(-len(ids) // self._num_threads))
        bounds = list(even_bounds(0, len(ids), most))
        for done in [self._threads.submit(self._read, ids[begin:end], out[begin:end]) for begin, end in bounds]:
            done.result()

    def _read(self, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        kernels.embed(self._matrix, ids, out)
