"""Read speed of a tier, estimated from completed reads."""

import pytest

from ballast.model.tiers.read_speed import FORGOTTEN_AFTER_S, KNOWN_FROM_S, ReadSpeed


def test_few_reads_give_no_speed() -> None:
    speed = ReadSpeed()
    assert speed.block_seconds(0.0) == 0.0
    speed.note(1, KNOWN_FROM_S / 2, 1.0)
    assert speed.block_seconds(1.0) == 0.0
    speed.note(0, KNOWN_FROM_S, 2.0)
    assert speed.block_seconds(2.0) == pytest.approx(1.5 * KNOWN_FROM_S)


def test_a_long_time_without_reads_gives_no_speed() -> None:
    speed = ReadSpeed()
    speed.note(0, 10.0, 1.0)
    assert speed.block_seconds(1.0) == 0.0


def test_the_latest_counts_most() -> None:
    speed = ReadSpeed()
    now = 0.0
    for _ in range(100):
        now += 1.0
        speed.note(100, 1.0, now)
    assert speed.block_seconds(now) == pytest.approx(0.01)
    for _ in range(40):
        now += 1.0
        speed.note(1, 1.0, now)
    assert speed.block_seconds(now) > 0.9


def test_old_read_speeds_are_forgotten() -> None:
    speed = ReadSpeed()
    speed.note(1, 10.0, 10.0)
    assert speed.block_seconds(10.0 + FORGOTTEN_AFTER_S) == pytest.approx(10.0)
    assert speed.block_seconds(10.1 + FORGOTTEN_AFTER_S) == 0.0
    speed.note(1000, 1.0, 11.0 + FORGOTTEN_AFTER_S)
    assert speed.block_seconds(11.0 + FORGOTTEN_AFTER_S) == pytest.approx(0.001)
