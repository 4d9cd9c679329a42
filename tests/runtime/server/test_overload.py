"""More clients than the server can handle: each gets a correct reply or a rejection with a retry time."""

import contextlib
import http.client
import json
import math
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from devkit.long import if_long, times
from devkit.servers.process import FAKE, JSON, ServerProcess

NUM_CLIENTS = 64
SETTINGS = ("--max_batch_size", "8", "--max_new_tokens", "64", "--cache_lens", "2048")


def ask_all(server):
    """(text, None) or (None, error) for each of the concurrent clients, and the texts of some of them alone."""
    prompts = [f"Client {n} says: " + "please " * (n % 5) for n in range(NUM_CLIENTS)]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        def ask(prompt):
            try:
                reply = client.completions.create(model="m", prompt=prompt, max_tokens=16, temperature=0)
            except openai.APIStatusError as error:
                return None, error
            return reply.choices[0].text, None

        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            together = list(pool.map(ask, prompts))
        server.wait_until_empty(timeout_s=30)
        alone = {n: ask(prompts[n])[0] for n in range(0, NUM_CLIENTS, times(4, 1))}
    return together, alone


def test_all_clients_are_answered_when_the_queue_holds_them():
    with ServerProcess(*SETTINGS) as server:
        together, alone = ask_all(server)
        assert all(text is not None for text, _ in together)
        assert {n: together[n][0] for n in alone} == alone
        assert server.get("/livez")[0] == server.get("/readyz")[0] == 200


def test_clients_beyond_the_queue_get_retry_after_and_the_others_a_reply():
    with ServerProcess(*SETTINGS, "--max_queue", "4") as server:
        together, alone = ask_all(server)
        refused = [error for _, error in together if error is not None]
        assert refused, "64 clients must exceed 8 slots and a queue of 4"
        assert len(refused) < NUM_CLIENTS
        for error in refused:
            assert isinstance(error, openai.RateLimitError)
            wait_ms = int(error.response.headers["retry-after-ms"])
            assert 0 < wait_ms <= 60_000
            assert int(error.response.headers["retry-after"]) == math.ceil(wait_ms / 1000)
            assert error.code == "queue_full"
        for n, expected in alone.items():
            text, error = together[n]
            assert error is not None or text == expected
        metrics = server.metrics()
        assert metrics['ballast_requests_total{endpoint="completions",outcome="rejected"}'] == len(refused)


@pytest.mark.parametrize("max_queue", ["4", *if_long("256")])
def test_patient_clients_all_get_through(max_queue):
    """The client's built-in retries follow Retry-After-Ms."""
    with (
        ServerProcess(*SETTINGS, "--max_queue", max_queue) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=20, timeout=120) as client,
        ThreadPoolExecutor(32) as pool,
    ):
        replies = pool.map(
            lambda n: client.completions.create(
                model="m", prompt=f"Client {n}", max_tokens=4, extra_body={"ignore_eos": True}
            ),
            range(32),
        )
        assert [reply.usage.completion_tokens for reply in replies] == [4] * 32
        server.wait_until_empty()


@pytest.fixture(scope="module")
def idle_server():
    """A server with four slots and the default limits."""
    with ServerProcess("--max_batch_size", "4", "--max_new_tokens", "64", "--cache_lens", "8192") as server:
        yield server


def statuses(server, bodies):
    """HTTP statuses of concurrent completions."""

    def status(body):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)) as connection:
            connection.request("POST", "/v1/completions", json.dumps({"ignore_eos": True, **body}), JSON)
            response = connection.getresponse()
            response.read()
            return response.status

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(status, bodies))


def num_rejected(server):
    return sum(count for name, count in server.metrics().items() if 'outcome="rejected"' in name)


@pytest.mark.parametrize("num_users", [16, *if_long(4, 8)])
def test_by_default_an_idle_server_accepts_a_burst_of_users(idle_server, num_users):
    bodies = [{"prompt": f"User {n} asks about river {n}", "max_tokens": 48} for n in range(num_users)]
    assert statuses(idle_server, bodies) == [200] * num_users
    assert num_rejected(idle_server) == 0
    idle_server.wait_until_empty()


LONG_PROMPT = {"prompt": "river stone cloud " * 1200, "max_tokens": 1}
SHORT_PROMPT = {"prompt": "Hello", "max_tokens": 4}


@pytest.mark.parametrize("limit_s", ["0", *if_long("0.001")])
def test_a_short_request_gets_a_free_slot_while_a_long_prompt_is_processed(limit_s):
    """The limit on the predicted queue time does not apply to a request that gets a slot immediately."""
    options = ("--max_batch_size", "4", "--max_new_tokens", "64", "--cache_lens", "8192", "--chunk_size", "32")
    with ServerProcess(*options, "--max_queue_wait_s", limit_s) as server, ThreadPoolExecutor(1) as pool:
        long = pool.submit(statuses, server, [LONG_PROMPT])
        server.wait_for(lambda now: now["ballast_batch_running"] == 1)
        assert statuses(server, [SHORT_PROMPT]) == [200]
        assert not long.done(), "the long prompt must still be in progress"
        assert long.result() == [200]
        assert num_rejected(server) == 0


def test_prompts_beyond_the_queues_token_limit_are_rejected_and_free_their_slot():
    options = ("--max_batch_size", "1", "--max_queue_tokens", "300", "--step_s", "0.05", "--max_new_tokens", "1000")
    with ServerProcess(*options, module=FAKE) as server, contextlib.ExitStack() as connections:

        def ask(num_prompt):
            connection = connections.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))
            )
            body = {"prompt": "a" * num_prompt, "max_tokens": 1000, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body), JSON)
            return connection

        assert ask(1).getresponse().status == 200
        waiting = [ask(140) for _ in range(2)]
        server.wait_for(lambda now: now["ballast_requests_waiting"] == 2)
        refusal = ask(100).getresponse()
        assert refusal.status == 429
        assert int(refusal.headers["Retry-After"]) >= 1
        assert "282 tokens wait and the queue holds 300" in json.loads(refusal.read())["error"]["message"]
        for connection in waiting:
            connection.close()
        server.wait_for(lambda now: now["ballast_requests_waiting"] == 0)
        ask(250)
        server.wait_for(lambda now: now["ballast_requests_waiting"] == 1)


def test_a_full_queue_rejects_before_the_prompt_is_tokenised():
    """The prompt exceeds any limit, but its length is known only after tokenization; a 429 shows that it was not
    tokenized."""
    options = ("--max_batch_size", "1", "--max_queue", "1", "--step_s", "0.05", "--max_new_tokens", "1000")
    options += ("--cache_lens", "4096")
    with ServerProcess(*options, module=FAKE) as server, contextlib.ExitStack() as connections:

        def ask(body, path="/v1/completions"):
            connection = connections.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))
            )
            connection.request("POST", path, json.dumps(body), JSON)
            return connection

        too_long = "a" * 20_000
        requested = {
            "/v1/completions": {"prompt": too_long},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": too_long}]},
            "/v1/messages": {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": too_long}]},
            "/v1/responses": {"input": too_long},
            "/completion": {"prompt": too_long},
        }
        for path, body in requested.items():
            assert ask(body, path).getresponse().status == 400, path
        long_reply = {"prompt": "a", "max_tokens": 1000, "stream": True}
        assert ask(long_reply).getresponse().status == 200
        ask(long_reply)
        server.wait_for(lambda now: now["ballast_requests_waiting"] == 1)
        for path, body in requested.items():
            assert ask(body, path).getresponse().status == 429, path
        count = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
        assert ask(count, "/v1/messages/count_tokens").getresponse().status == 200
