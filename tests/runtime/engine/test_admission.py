"""The bounds of the queue, and the errors for refused clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.admission import MAX_RETRY_AFTER_S, Queue, check_capacity, retry_after_s
from ballast.errors import CapacityError


def queue(num_waiting=4, waiting_tokens=900, max_batch_size=4, mean_duration_s=2.0):
    return Queue(num_waiting, waiting_tokens, max_batch_size, mean_duration_s)


def refused(now, count=1, num_tokens=100, max_requests=8, max_tokens=1000):
    try:
        check_capacity(now, count, num_tokens, max_requests, max_tokens)
    except CapacityError as error:
        return error
    return None


def test_requests_and_tokens_are_bounded_each_by_itself():
    assert refused(queue()) is None
    assert "8 requests wait and the queue holds 8" in str(refused(queue(num_waiting=8)))
    assert "4 requests wait" in str(refused(queue(), count=5))
    assert "900 tokens wait and the queue holds 1000" in str(refused(queue(), num_tokens=101))
    assert refused(queue(), num_tokens=10**9, max_tokens=None) is None
    assert (refused(queue(num_waiting=8)).status, refused(queue(num_waiting=8)).retry_after_s) == (429, 5)


def test_a_prompt_longer_than_the_queue_holds_may_come_in_when_nothing_else_waits():
    assert refused(queue(num_waiting=0, waiting_tokens=0), num_tokens=5000) is None
    assert refused(queue(num_waiting=-3, waiting_tokens=700), num_tokens=5000) is None
    assert refused(queue(num_waiting=1, waiting_tokens=5), num_tokens=5000) is not None


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (queue(num_waiting=7, mean_duration_s=3.0), 6),
        (queue(num_waiting=-2, mean_duration_s=0.1), 1),
        (queue(num_waiting=200, mean_duration_s=30.0), MAX_RETRY_AFTER_S),
    ],
)
def test_the_wait_is_the_time_that_the_queue_will_take(now, seconds):
    assert retry_after_s(now) == seconds


@given(st.integers(-64, 10**6), st.integers(1, 64), st.floats(0, 1e6))
def test_the_wait_is_one_that_clients_heed(num_waiting, batch, duration):
    now = queue(num_waiting=num_waiting, max_batch_size=batch, mean_duration_s=duration)
    assert 1 <= retry_after_s(now) <= 60
    longer = queue(num_waiting=num_waiting + 1, max_batch_size=batch, mean_duration_s=duration)
    assert retry_after_s(longer) >= retry_after_s(now)
