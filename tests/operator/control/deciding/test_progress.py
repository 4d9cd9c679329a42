"""What counts as progress, and the time without progress."""

from ballast_operator.control.deciding.progress import ProgressClock


def test_time_without_progress_counts_from_a_new_target_or_more_ready_pods():
    clock = ProgressClock()
    assert clock.idle_s("a", 0, 3, 100.0) == 0
    assert clock.idle_s("a", 0, 3, 150.0) == 50
    assert clock.idle_s("a", 1, 3, 160.0) == 0
    assert clock.idle_s("b", 1, 3, 170.0) == 0


def test_time_at_zero_replicas_does_not_count_as_time_without_progress():
    clock = ProgressClock()
    clock.idle_s(("a", 0), 0, 0, 0.0)
    assert clock.idle_s(("a", 0), 0, 0, 90_000.0) == 0
    assert clock.idle_s(("a", 1), 0, 1, 180_000.0) == 0


def test_a_pod_that_flaps_is_no_progress():
    clock = ProgressClock()
    clock.idle_s("a", 2, 3, 0.0)
    assert clock.idle_s("a", 1, 3, 10.0) == 10
    assert clock.idle_s("a", 2, 3, 20.0) == 20


def test_a_complete_service_never_times_out_and_a_later_failure_starts_the_timeout():
    clock = ProgressClock()
    clock.idle_s("a", 3, 3, 0.0)
    assert clock.idle_s("a", 3, 3, 500.0) == 0
    assert clock.idle_s("a", 2, 3, 510.0) == 10


def test_progress_clears_a_failure_and_a_restart_of_the_operator_keeps_it():
    clock = ProgressClock(failed=True)
    clock.idle_s("a", 0, 1, 0.0)
    assert clock.failed
    clock.idle_s("a", 1, 1, 1.0)
    assert not clock.failed
    clock.failed = True
    clock.idle_s("b", 0, 1, 2.0)
    assert not clock.failed


def test_a_pull_without_failures_does_not_count_as_time_without_progress():
    clock = ProgressClock()
    clock.idle_s("a", 0, 1, 0.0)
    assert clock.idle_s("a", 0, 1, 5000.0, is_pulling=True) == 0
    assert clock.idle_s("a", 0, 1, 5100.0) == 100, "a trouble"
    assert clock.idle_s("a", 0, 1, 6100.0, is_pulling=True) == 100
    assert clock.idle_s("a", 0, 1, 6700.0) == 700, "troubles add up"
