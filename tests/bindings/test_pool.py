"""The thread pool's Python interface; tests/cpp/test_thread_pool.cpp tests its behaviour."""

from __future__ import annotations

import time

import numpy as np

from ballast._core import kernels


def test_loop_times_are_seconds_of_the_monotonic_clock() -> None:
    pool = kernels.ThreadPool(2)
    weight = kernels.Matrix(np.ones((4096, 64), np.float32).view(np.uint8), 0, 4096, 64)
    x, out = np.ones((1, 64), np.float32), np.empty((1, 4096), np.float32)
    begin = time.monotonic()
    with kernels.KeepAwake(pool):
        pool.start_recording()
        kernels.linear(pool, x, weight, out)
        kernels.linear(pool, x, weight, out)
        loops = pool.stop_recording()
    end = time.monotonic()
    np.testing.assert_array_equal(out, 64.0)
    assert len(loops) == 2
    reported = [
        moment for opened, first, last, over in loops for moment in (opened, first or opened, last or opened, over)
    ]
    assert begin <= reported[0]
    assert reported[-1] <= end
    assert reported == sorted(reported)
    kernels.linear(pool, x, weight, out)
    assert pool.stop_recording() == []


def test_a_pool_is_kept_awake_again_and_again() -> None:
    pool = kernels.ThreadPool(2)
    kept = kernels.KeepAwake(pool)
    for _ in range(3):
        with kept:
            assert kernels.measure_read_speed(pool, 1 << 20) > 0
