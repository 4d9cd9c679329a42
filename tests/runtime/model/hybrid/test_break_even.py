"""From how many tokens experts are streamed, from what was measured."""

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
        # A disturbed measurement in between does not count as a win: it holds from there on or not at all.
        (timings((100, 9.0, 4.0), (200, 3.0, 4.0), (400, 7.0, 5.0)), 267),
        (timings((100, 9.0, 4.0), (200, 3.0, 4.0)), None),
    ],
)
def test_the_fewest_tokens_from_which_streaming_takes_no_longer(measured: list[Timing], expected: int | None) -> None:
    assert break_even(measured) == expected
