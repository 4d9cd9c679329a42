"""Waiting clients share the server fairly. A request whose predicted wait is too long is rejected immediately."""

import contextlib
import http.client
import json
import math

import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

SLOW = ("--max_batch_size", "1", "--max_new_tokens", "60000", "--step_s", "0.002")
NUM_HEAVY = 6


def served_order(server, keys):
    """The number of each request, in the order in which the server finished them. They are queued in the order of
    `keys` behind a request that ends only when all of them are waiting."""
    names = [f"number-{number}" for number in range(len(keys))]
    with contextlib.ExitStack() as connections:

        def begin(name, key, **fields):
            connection = connections.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=90))
            )
            headers = JSON | {"Authorization": f"Bearer {key}", "X-Request-Id": name}
            connection.request("POST", "/v1/completions", json.dumps({"prompt": name, **fields}), headers)
            return connection

        first = begin("first", keys[0], max_tokens=60000, stream=True)
        server.wait_for(lambda now: now["ballast_batch_running"] == 1)
        waiting = []
        for name, key in zip(names, keys, strict=True):
            waiting.append(begin(name, key, max_tokens=20))
            server.wait_for(lambda now: now["ballast_requests_waiting"] == len(waiting))
        first.close()
        for connection in waiting:
            assert connection.getresponse().status == 200
    # Clients may see replies in any order; the server logs each request when it finishes.
    finished = server.wait_for_events(lambda event: event.get("request_id") in names, len(names))
    return [names.index(event["request_id"]) for event in finished]


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("heavy\nlight\n")
    return ("--api_key_file", str(path), "--admin_port", "0")


@pytest.mark.parametrize(("policy", "place"), [("fair", 1), ("fcfs", NUM_HEAVY)])
def test_a_light_client_overtakes_a_heavy_ones_queue(key_file, policy, place):
    with ServerProcess(*SLOW, *key_file, "--queue_policy", policy, module=FAKE) as server:
        order = served_order(server, [*["heavy"] * NUM_HEAVY, "light"])
        assert order.index(NUM_HEAVY) == place
        assert [number for number in order if number != NUM_HEAVY] == list(range(NUM_HEAVY))


def test_with_one_client_requests_are_served_as_they_came():
    with ServerProcess(*SLOW, module=FAKE) as server:
        assert served_order(server, ["no key is asked for"] * NUM_HEAVY) == list(range(NUM_HEAVY))


def test_a_request_with_a_long_predicted_queue_time_is_rejected_with_retry_after():
    options = (*SLOW[:-1], "0.05", "--max_queue_wait_s", "0.5")
    with ServerProcess(*options, module=FAKE) as server, contextlib.ExitStack() as connections:

        def ask():
            connection = connections.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))
            )
            body = {"prompt": "a", "max_tokens": 1000, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body), JSON)
            return connection

        first = ask()
        server.wait_for(lambda now: now["ballast_predicted_wait_seconds"] > 0.5)
        reply = ask().getresponse()
        error = json.loads(reply.read())["error"]
        assert reply.status == 429
        assert error["code"] == "queue_full"
        assert "--max_queue_wait_s is 0.5" in error["message"]
        assert 100 <= int(reply.headers["Retry-After-Ms"]) <= 60_000
        assert int(reply.headers["Retry-After"]) == math.ceil(int(reply.headers["Retry-After-Ms"]) / 1000)
        first.close()
        server.wait_for(lambda now: now["ballast_predicted_wait_seconds"] == 0)
        assert ask().getresponse().status == 200
