"""How a joint step divides experts between the CPU and the device, and for which numbers of tokens that pays."""

from __future__ import annotations

import pytest

from ballast.model.hybrid.streaming.break_even import Timing
from ballast.model.hybrid.streaming.joint_split import (
    MIN_GAIN,
    JointSplit,
    JointTiming,
    balanced_fraction,
    expert_counts,
    joint_split,
)


def timings(*rows: tuple[int, float, float, float]) -> list[JointTiming]:
    """(tokens, CPU, streamed, both)."""
    return [JointTiming(tokens, cpu, streamed, cpu / (cpu + streamed), joint) for tokens, cpu, streamed, joint in rows]


def test_both_processors_take_equally_long() -> None:
    assert balanced_fraction(Timing(256, 1.0, 3.0)) == 0.25
    assert balanced_fraction(Timing(256, 3.0, 1.0)) == 0.75
    assert balanced_fraction(Timing(256, 0.0, 0.0)) == 0.0


def test_the_fraction_is_interpolated_and_constant_beyond_the_measurements() -> None:
    split = JointSplit([(64, 0.2), (128, 0.4), (512, 0.8)], 64, 512)
    found = [split.fraction(tokens) for tokens in (1, 64, 96, 128, 320, 512, 4096)]
    assert found == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.6, 0.8, 0.8])
    assert [split.is_faster(tokens) for tokens in (63, 64, 512, 513)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([], None),
        (timings((64, 1.0, 9.0, 2.0), (128, 9.0, 1.0, 2.0)), None),
        (timings((64, 1.0, 1.0, 1.0)), None),
        (timings((64, 2.0, 2.0, 1.0)), (64, 64)),
        (timings((64, 2.0, 4.0, 1.0), (128, 3.0, 4.0, 2.0), (256, 9.0, 4.0, 3.0)), (64, 256)),
        # Leads of -1, 1, 1 and -1 seconds: each end is half-way between two measurements.
        (timings((64, 1.9, 9.0, 2.805), (128, 4.0, 4.0, 2.8), (256, 4.0, 4.0, 2.8), (512, 9.0, 2.0, 2.9)), (96, 384)),
        # The longest run of gains counts, not one before a disturbed measurement.
        (timings((64, 4.0, 4.0, 2.0), (128, 4.0, 4.0, 9.0), (256, 4.0, 4.0, 2.0), (512, 4.0, 4.0, 2.0)), (224, 512)),
    ],
)
def test_joint_steps_are_those_that_both_processors_compute_faster(
    measured: list[JointTiming], expected: tuple[int, int] | None
) -> None:
    split = joint_split(measured)
    assert (None if split is None else (split.from_tokens, split.to_tokens)) == expected
    if split is not None:
        assert split.fractions == [(timing.tokens, timing.fraction) for timing in measured]


def test_a_gain_within_the_noise_of_measurements_does_not_count() -> None:
    assert joint_split(timings((64, 1.0, 1.0, 1.01 - MIN_GAIN))) is None
    assert joint_split(timings((64, 1.0, 1.0, 0.99 - MIN_GAIN))) is not None


def test_layers_stream_whole_chunks_and_meet_the_fraction_on_average() -> None:
    assert expert_counts([[25, 50, 75, 100]] * 4, 0.6) == [50, 75, 50, 75]
    assert expert_counts([[100]] * 4, 0.25) == [0, 0, 100, 0]
    assert expert_counts([[4, 8]] * 3, 0.0) == [0, 0, 0]
    assert expert_counts([[4, 8]] * 3, 1.0) == [8, 8, 8]
    assert expert_counts([[4, 8, 12]] * 2, 0.5, [[0, 4, 8]] * 2) == [8, 8], "the first four are in a device's memory"
    assert expert_counts([[4, 8, 12], [4, 8]], 1.0, [[4, 4, 4], [0, 0]]) == [4, 0], "nothing else is left to copy"
    for fraction in (0.1, 0.37, 0.93):
        counts = expert_counts([[3, 6, 10]] * 30, fraction)
        assert abs(sum(counts) / 300 - fraction) < 0.01
