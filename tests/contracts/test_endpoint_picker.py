"""The metrics that an inference gateway's endpoint picker reads from a pod, according to the model server protocol of
the Gateway API inference extension (its proposal 003): three gauges with vLLM's names, and their meaning."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devkit.cluster.waiting import wait_for
from devkit.servers.process import FAKE, ServerProcess

QUEUED, RUNNING, USED = "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
MODEL = "the-model"
SLOTS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--step_s", "0.1", "--max_batch_size", str(SLOTS), "--max_new_tokens", "400", "--cache_lens", "1024")
    with ServerProcess(*options, "--admin_port", "0", "--served_model_name", MODEL, module=FAKE) as process:
        yield process


def gauges(server: ServerProcess) -> dict[str, float]:
    """The three gauges from the port that pickers scrape. Each has one series with the model's name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics", timeout=60) as reply:
        families = {family.name: family for family in text_string_to_metric_families(reply.read().decode())}
    found = {}
    for name in (QUEUED, RUNNING, USED):
        (sample,) = families[name].samples
        assert families[name].type == "gauge"
        assert sample.labels == {"model_name": MODEL}
        found[name] = sample.value
    return found


@contextmanager
def clients(server: ServerProcess, number: int) -> Iterator[None]:
    """Start this many concurrent requests, each long enough to be observed. They are cancelled at the end."""
    body = json.dumps({"prompt": "a" * 100, "max_tokens": 400, "stream": True}).encode()
    leave = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60):
            leave.wait(60)

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def idle(server: ServerProcess) -> bool:
    return gauges(server) == {QUEUED: 0, RUNNING: 0, USED: 0}


def test_an_idle_pod_is_the_best_choice(server: ServerProcess) -> None:
    wait_for("nothing to do", lambda: idle(server))


def test_running_requests_fill_the_batch_and_the_others_are_queued(server: ServerProcess) -> None:
    with clients(server, SLOTS + 3):
        wait_for("a full batch", lambda: gauges(server)[RUNNING] == SLOTS and gauges(server)[QUEUED] == 3)
        assert gauges(server)[RUNNING] <= SLOTS, "at most as many as the batch has slots"
    wait_for("nothing to do", lambda: idle(server))


def test_usage_is_the_fraction_of_tokens_held_by_running_requests(server: ServerProcess) -> None:
    with clients(server, 1):
        wait_for("a running request", lambda: gauges(server)[RUNNING] == 1 and gauges(server)[USED] > 0)
        one = gauges(server)[USED]
        assert 100 / 1024 <= one <= (100 + 400 + 64) / 1024, "a fraction of 1, not a percentage"
        with clients(server, 1):
            wait_for("two running requests", lambda: gauges(server)[RUNNING] == 2)
            wait_for("both to hold tokens", lambda: gauges(server)[USED] > one)
    wait_for("nothing to do", lambda: idle(server))
