"""How OpenAI's and Anthropic's own clients handle a rejection: which exception they raise, and when they retry.

The `anthropic` package is imported only by its users: it takes two seconds, and each pytest worker imports this file.
"""

import threading
from contextlib import contextmanager

import openai
import pytest

from devkit.servers.process import FAKE, ServerProcess

MOST_WAITED_S = 60
REQUESTED = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def server():
    options = ("--max_batch_size", "1", "--max_queue", "1", "--step_s", "0.01")
    with ServerProcess(*options, module=FAKE) as process:
        yield process


@contextmanager
def clients(server, retries):
    import anthropic

    options = {"api_key": "none", "max_retries": retries, "timeout": 60}
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", **options) as first,
        anthropic.Anthropic(base_url=server.url, **options) as second,
    ):
        yield first, second


def fill(openai_client):
    """Streams that occupy the only slot and the only queue position."""
    endless = {"model": "m", "prompt": "a", "max_tokens": 1000, "stream": True, "extra_body": {"ignore_eos": True}}
    running = openai_client.completions.create(**endless)
    next(iter(running))
    waiting = threading.Thread(target=lambda: openai_client.completions.create(**endless).close())
    waiting.start()
    return running, waiting


def test_a_rejection_raises_the_clients_error_class_and_a_retry_succeeds(server):
    import anthropic

    with clients(server, retries=0) as (first, second), clients(server, retries=20) as (patient, other):
        running, waiting = fill(first)
        wait_until_one_waits(server)
        with pytest.raises(openai.RateLimitError) as refused:
            first.chat.completions.create(**REQUESTED)
        assert 0 < wait_s(first, refused) <= MOST_WAITED_S
        with pytest.raises(anthropic.RateLimitError) as refused:
            second.messages.create(**REQUESTED)
        assert refused.value.body["error"]["type"] == "rate_limit_error"
        assert 0 < wait_s(second, refused) <= MOST_WAITED_S
        threading.Timer(0.5, running.close).start()
        assert patient.chat.completions.create(**REQUESTED).usage.completion_tokens == 2
        assert other.messages.create(**REQUESTED).usage.output_tokens == 2
        waiting.join(timeout=30)
        assert not waiting.is_alive()
    refusals = [count for name, count in server.metrics().items() if 'outcome="rejected"' in name]
    assert sum(refusals) > 2, "the patient client must have been rejected before"


def test_a_loading_server_raises_the_clients_error_class_with_retry_after():
    import anthropic

    with (
        ServerProcess("--load_s", "60", module=FAKE, until_ready=False) as server,
        clients(server, retries=0) as (first, second),
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            first.chat.completions.create(**REQUESTED)
        assert refused.value.status_code == 503
        assert 0 < wait_s(first, refused) <= MOST_WAITED_S
        with pytest.raises(anthropic.ServiceUnavailableError) as refused:
            second.messages.create(**REQUESTED)
        assert refused.value.body["error"]["type"] == "overloaded_error"
        assert 0 < wait_s(second, refused) <= MOST_WAITED_S


def test_a_timeout_raises_the_clients_error_class_and_is_not_retried():
    import anthropic

    with (
        ServerProcess("--step_s", "0.05", "--request_timeout_s", "0.3", module=FAKE) as server,
        clients(server, retries=5) as (first, second),
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            first.chat.completions.create(**REQUESTED | {"max_tokens": 1000})
        assert (refused.value.status_code, refused.value.code) == (504, "request_timeout")
        with pytest.raises(anthropic.GatewayTimeoutError) as refused:
            second.messages.create(**REQUESTED | {"max_tokens": 1000})
        assert refused.value.body["error"]["type"] == "timeout_error"
        timeouts = [count for name, count in server.metrics().items() if 'outcome="timeout"' in name]
        assert sum(timeouts) == 2


def wait_s(client, refused):
    """The wait that the client derives from the reply's headers."""
    return client._parse_retry_after_header(refused.value.response.headers)


def wait_until_one_waits(server):
    for _ in range(500):
        if server.metrics()["ballast_requests_waiting"] == 1:
            return
    raise AssertionError("no request waits")
