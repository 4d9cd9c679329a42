"""Retry-After for rejected clients: one after another, as fast as requests end. Time is simulated."""

import heapq
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.admission.retry_schedule import FIRST_GUESS_S, MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, RetrySchedule

BATCH, QUEUE = 4, 8
TRAVEL_S = 0.01
"""Delay between the end of a client's wait and the arrival of its retry."""


def measured(duration_s, slots=BATCH):
    schedule = RetrySchedule(slots)
    for _ in range(100 * slots):
        schedule.ran(duration_s, 1)
    return schedule


def test_a_slot_is_free_as_soon_as_one_request_has_ended():
    """The queue's length does not matter: a rejected client waits for a slot in the queue, not for its end."""
    wait_s = measured(20.0).refuse(now=0.0)
    assert 0.6 * 20.0 / BATCH < wait_s < 20.0 / BATCH


def test_each_rejected_client_gets_its_own_retry_slot():
    schedule = measured(20.0)
    waits = [schedule.refuse(now=100.0) for _ in range(5)]
    assert waits == pytest.approx([n * waits[0] for n in range(1, 6)])
    assert schedule.refuse(now=100.0 + waits[-1]) == pytest.approx(waits[0]), "earlier slots have passed"
    assert measured(20.0).refuse(now=0.0, num_slots=3) == pytest.approx(waits[2])


def test_before_any_request_ends_the_retry_time_grows_with_run_time():
    schedule = RetrySchedule(BATCH)
    assert schedule.refuse(now=0.0) == pytest.approx(max(MIN_RETRY_AFTER_S, FIRST_GUESS_S / BATCH))
    schedule.ran(BATCH * 30.0, 0)
    assert 3.0 < schedule.refuse(now=30.0) < 30.0 / BATCH


def test_old_measurements_fade_when_requests_change():
    schedule = measured(100.0)
    for _ in range(100):
        schedule.ran(1.0, 1)
    assert schedule.refuse(now=0.0) < 1.0


def test_beyond_the_limit_clients_still_get_different_retry_times():
    schedule = measured(40.0)
    waits = [schedule.refuse(now=0.0) for _ in range(100)]
    assert max(waits) <= MAX_RETRY_AFTER_S
    assert all(abs(a - b) > 1.0 for a, b in itertools.pairwise(waits))


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 64))),
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 128)), min_size=1),
)
def test_the_retry_time_is_one_that_clients_respect(slots, runs, refusals):
    schedule = RetrySchedule(slots)
    for run_s, num_ended in runs:
        schedule.ran(run_s, num_ended)
    now = 0.0
    for pause_s, num_slots in refusals:
        now += pause_s
        assert MIN_RETRY_AFTER_S <= schedule.refuse(now, num_slots) <= MAX_RETRY_AFTER_S


class Server:
    """A batch and a queue in simulated time, with clients that retry at the requested time."""

    def __init__(self, durations):
        self._schedule = RetrySchedule(BATCH)
        self._durations = durations
        self._ends = []
        self._now = 0.0
        self.idle_s = 0.0

    def answer(self, num_clients):
        """Seconds until all clients have a reply; their first requests arrive within a tenth of a second."""
        arrivals = [0.1 * n / num_clients for n in range(num_clients)]
        waiting = 0
        while arrivals or self._ends:
            if self._ends and (not arrivals or self._ends[0] <= arrivals[0]):
                self._pass_to(heapq.heappop(self._ends), num_ended=1)
                if waiting:
                    waiting -= 1
                    self._begin()
                continue
            self._pass_to(heapq.heappop(arrivals), num_ended=0)
            if len(self._ends) < BATCH:
                self._begin()
            elif waiting < QUEUE:
                waiting += 1
            else:
                heapq.heappush(arrivals, self._now + self._schedule.refuse(self._now) + TRAVEL_S)
        return self._now

    def _begin(self):
        heapq.heappush(self._ends, self._now + next(self._durations))

    def _pass_to(self, now, num_ended):
        num_running = len(self._ends) + num_ended
        self._schedule.ran(num_running * (now - self._now), num_ended)
        self.idle_s += now - self._now if not num_running else 0.0
        self._now = now


@pytest.mark.parametrize("mean_s", [0.2, 0.65, 5.0, 30.0])
def test_eighty_clients_at_once_keep_the_batch_full(mean_s):
    durations = [mean_s] * 80
    server = Server(iter(durations))
    assert server.answer(80) <= 1.05 * sum(durations) / BATCH
    assert server.idle_s == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_requests_of_different_lengths_keep_the_engine_busy(seed):
    random_s = random.Random(seed)
    server = Server(iter(lambda: random_s.expovariate(1 / 2.0), None))
    assert server.idle_s <= 0.02 * server.answer(200)
