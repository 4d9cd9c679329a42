"""A clock that stops while the process is stopped."""

import threading

from ballast.awake_clock import AwakeClock


def test_the_clock_follows_the_system_clock_while_it_is_read():
    time_s = iter([100.0, 100.5, 101.5, 101.5, 102.25])
    clock = AwakeClock(1.0, lambda: next(time_s))
    assert [clock.now() for _ in range(4)] == [0.5, 1.5, 1.5, 2.25]


def test_a_pause_of_any_length_counts_as_the_longest_gap():
    time_s = [100.0]
    clock = AwakeClock(1.0, lambda: time_s[0])
    for pause_s in (25.0, 3600.0, 1.5):
        before = clock.now()
        time_s[0] += pause_s
        assert clock.now() == before + 1.0


def test_a_pause_uses_a_small_fraction_of_a_limit():
    clock = AwakeClock.for_limit(25.0)
    clock._read = lambda: clock._last + 1e6  # a process that never runs for long
    assert [clock.now() < 25.0 for _ in range(8)] == [True] * 7 + [False]


def test_readings_on_several_threads_count_each_second_once():
    clock = AwakeClock(1.0)
    first = clock.now()
    readings: list[float] = []
    threads = [threading.Thread(target=lambda: readings.extend(clock.now() for _ in range(200))) for _ in range(4)]
    begin = clock._last
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(readings) <= clock._last - begin + first + 1e-6
