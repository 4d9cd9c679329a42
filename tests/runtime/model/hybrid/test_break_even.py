"""The number of tokens from which experts are streamed, computed from timings."""

from __future__ import annotations

import pytest

from ballast.model.hybrid.streaming.break_even import Timing, break_even


def timings(*rows: tuple[int, float, float]) -> list[Timing]:
    return [Timing(*row) for row in rows]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([], None),
        (timings((32, 1.0, 5.0), (64, 2.0, 5.0)), None),
        (timings((32, 5.0, 5.0)), 32),
        (timings((32, 6.0, 5.0), (64, 9.0, 5.0)), 32),
        (timings((100, 2.0, 4.0), (200, 6.0, 4.0)), 150),
        (timings((100, 3.0, 4.0), (200, 6.0, 4.0)), 134),
        (timings((100, 2.0, 4.0), (200, 4.0, 4.0), (400, 9.0, 5.0)), 200),
        # A disturbed measurement in between does not count as a win: the win must hold for all larger sizes.
        (timings((100, 9.0, 4.0), (200, 3.0, 4.0), (400, 7.0, 5.0)), 267),
        (timings((100, 9.0, 4.0), (200, 3.0, 4.0)), None),
    ],
)
def test_streaming_starts_at_the_break_even_number_of_tokens(measured: list[Timing], expected: int | None) -> None:
    assert break_even(measured) == expected
