"""When the transition times of conditions change."""

from datetime import timedelta

from builders import NOW

from ballast_operator.control.reporting.conditions import Finding, merge


def test_times_change_only_with_the_status():
    first = merge({"Ready": Finding("False", "Loading", "10 %")}, [], 1, NOW)
    later = NOW + timedelta(minutes=5)
    second = merge({"Ready": Finding("False", "Loading", "20 %")}, [c.to_api() for c in first], 2, later)
    third = merge({"Ready": Finding("True", "Serving")}, [c.to_api() for c in second], 2, later)
    assert [c[0].last_transition_time for c in (first, second, third)] == [
        "2026-01-01T12:00:00Z", "2026-01-01T12:00:00Z", "2026-01-01T12:05:00Z",
    ]  # fmt: skip
    assert second[0].observed_generation == 2
