"""The bounds of the queue."""

from ballast.engine.admission.rules import Queue, reason_to_refuse


def refused(now=None, count=1, num_tokens=100, max_requests=8, max_tokens=1000):
    return reason_to_refuse(now or Queue(4, 900), count, num_tokens, max_requests, max_tokens)


def test_requests_and_tokens_are_bounded_each_by_itself():
    assert refused() is None
    assert refused(Queue(8, 900)) == "8 requests wait and the queue holds 8"
    assert refused(count=5) == "4 requests wait and the queue holds 8"
    assert refused(num_tokens=101) == "900 tokens wait and the queue holds 1000"
    assert refused(num_tokens=10**9, max_tokens=None) is None


def test_a_prompt_longer_than_the_queue_limit_is_accepted_if_the_queue_is_empty():
    assert refused(Queue(0, 0), num_tokens=5000) is None
    assert refused(Queue(-3, 700), num_tokens=5000) is None
    assert refused(Queue(1, 5), num_tokens=5000) is not None
