"""Embedded tokens are the same whether one thread or several read them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast.model.hybrid.layers import table_reader
from ballast.model.hybrid.layers.table_reader import TableReader
from devkit.models.random_blocks import dequantized, random_blocks


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 50])
def test_rows_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch, num_tokens: int) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(table_reader, "ROWS_A_THREAD", 4)
    data = random_blocks(rng, T.Q4_K, 30, 256)
    read = TableReader(kernels.Matrix(data, T.Q4_K, 30, 256))
    ids = rng.integers(0, 30, num_tokens).astype(np.int32)
    out = np.full((num_tokens, 256), np.nan, np.float32)
    read.read(ids, out)
    np.testing.assert_array_equal(out, dequantized(data, T.Q4_K)[ids])


def test_every_thread_rejects_an_id_without_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(table_reader, "ROWS_A_THREAD", 4)
    read = TableReader(kernels.Matrix(random_blocks(rng, T.Q4_K, 30, 256), T.Q4_K, 30, 256))
    ids = np.zeros(40, np.int32)
    ids[33] = 30
    with pytest.raises(IndexError, match=r"is 30; expected 0 to 29"):
        read.read(ids, np.empty((40, 256), np.float32))
