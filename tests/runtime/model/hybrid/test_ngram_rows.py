"""The rows of an n-gram table: those of the definition, in any steps."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.hybrid.layers.ngram_rows import NgramRows
from ballast.model.layers.ngram import NgramSpec

END = 5
NGRAM = NgramSpec(
    table_rows=400,
    row_width=32,
    multipliers=((1 << 60) + 7, (1 << 59) + 11, (1 << 62) // 9 | 1),
    head_offsets=(0, 100, 201, 300),
    head_sizes=(97, 101, 89, 100),
    end_id=END,
    conv_taps=4,
)
TABLE = np.random.default_rng(1).standard_normal((400, 32)).astype(np.float32)
ROWS = NgramRows(NGRAM, 1, kernels.Matrix(TABLE.view(np.uint8).ravel(), T.F32, 400, 32))


def batch_of(token_ids: list[list[int]], earlier: list[list[int]] | None = None) -> Batch:
    counts, none = [len(ids) for ids in token_ids], np.zeros(0, np.int32)
    return Batch(
        token_ids=np.concatenate([np.array(ids, np.int32) for ids in token_ids]),
        positions=none,
        slots=none,
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        kv_indptr=none,
        kv_indices=none,
        sampled=np.zeros(0, np.int64),
        earlier_ids=None if earlier is None else np.array(earlier, np.int32).ravel(),
    )


def defined(text: list[int]) -> list[int]:
    """The rows of the last token of a text."""
    found: list[int] = []
    for most in (2, 3):
        group = [*[END] * most, *text][-most:]
        ends = [at for at in range(most - 1) if group[at] == END]
        if ends:  # an end of a text replaces what is before it
            group[: ends[-1]] = [END] * ends[-1]
        number = 0
        for token, multiplier in zip(reversed(group), NGRAM.multipliers, strict=False):
            number ^= token * multiplier
        heads = range(2 * (most - 2), 2 * (most - 1))
        found += [number % NGRAM.head_sizes[head] + NGRAM.head_offsets[head] for head in heads]
    return found


@pytest.mark.parametrize("text", [[3, 1, 4, 1, 9, 2, 6], [END, 1, 2, 3], [1, END, 2, 3, END, END, 7], [END]], ids=str)
def test_rows_are_those_of_the_definition_in_any_steps(text: list[int]) -> None:
    expected = [defined(text[: end + 1]) for end in range(len(text))]
    assert ROWS.row_ids(batch_of([text])).reshape(-1, 4).tolist() == expected
    for cut in range(1, len(text)):
        # Another request of one token is before it.
        earlier = [[-1, -1, -1], [-1, -1, -1, *text[:cut]][-3:]]
        found = ROWS.row_ids(batch_of([[8], text[cut:]], earlier)).reshape(-1, 4).tolist()
        assert found == [defined([8]), *expected[cut:]]


def test_the_rows_of_a_token_are_side_by_side() -> None:
    batch, out = batch_of([[3, 1, 4]]), np.zeros((3, NGRAM.width), np.float32)
    ROWS.read(batch, out)
    np.testing.assert_array_equal(out.reshape(-1, 32), TABLE[ROWS.row_ids(batch)])
