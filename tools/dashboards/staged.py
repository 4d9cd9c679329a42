"""A demonstration fleet: a real operator on a control plane, two real servers of the built-in model under mixed load,
and the Prometheus that scrapes them. Nodes and pods are simulated; everything that the dashboards show about requests
is real."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from devkit.cluster.cluster import Cluster
from devkit.cluster.prometheus import Prometheus
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for
from devkit.servers.at_work import at_work
from devkit.servers.process import JSON, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts/ballast/files/rules.yaml"
NAMESPACE = "models"
SERVICES = ("chat", "code")
NEVER_READY = "draft"
"""Its image cannot be pulled."""
ANSWER_S = 120
BURST_EVERY_S, BURST_S, BURST = 60, 16, 12
"""Number of clients. Bursts have a full minute of the load in their middle."""
OPTIONS = (
    *("--admin_port", "0", "--cpu_threads", "1", "--max_batch_size", "4", "--max_queue", "6"),
    *("--max_new_tokens", "256", "--cache_lens", "2048", "--kv_disk_bytes", "64MiB"),
)
QUESTIONS = (
    "What is 417 + 258?",
    "What is the capital of Norway?",
    "How do I start Ballast on one GPU?",
    "Count from 1 to 20.",
    "What is a mixture of experts?",
)


@contextmanager
def fleet(folder: Path) -> Iterator[tuple[Prometheus, Sequence[ServerProcess]]]:
    """Prometheus, which scrapes the whole fleet, and the servers, still without load."""
    with ExitStack() as running:
        cluster = Cluster(folder)
        cluster.start()
        running.callback(cluster.stop)
        pods = PodAnswers(cluster.kube)
        pods.start()
        running.callback(pods.stop)
        install(cluster)
        operator = OperatorProcess(cluster, "operator", pods.url, "--resync-seconds", "30")
        operator.start()
        running.callback(operator.stop)
        operator.wait_leading()
        cluster.make_namespace(NAMESPACE)
        for name in SERVICES:
            cluster.kube.apply("inferenceservices", service(name), NAMESPACE)
        cluster.kube.apply("inferenceservices", service(NEVER_READY, "unpullable"), NAMESPACE)
        for name in SERVICES:
            wait_ready(cluster.kube, NAMESPACE, name)
        servers = [
            running.enter_context(ServerProcess(*OPTIONS, "--kv_disk_dir", str(folder / f"kv-{name}")))
            for name in SERVICES
        ]
        targets = {
            f"127.0.0.1:{server.admin_port}": {"namespace": NAMESPACE, "service": name, "pod": f"{name}-0"}
            for name, server in zip(SERVICES, servers, strict=True)
        }
        prometheus = Prometheus(folder, {**targets, operator.health_address: {"pod": "operator-0"}}, RULES)
        prometheus.start()
        running.callback(prometheus.stop)
        wait_for("Prometheus to be ready", prometheus.is_ready)
        wait_for("every target to be scraped", lambda: prometheus.num_healthy_targets() == len(targets) + 1)
        running.enter_context(at_work([partial(_changes, cluster)]))
        yield prometheus, servers


@contextmanager
def load(servers: Sequence[ServerProcess]) -> Iterator[None]:
    """Sends conversations, long prompts, requests of clients that disconnect, and at times more requests than a server
    takes."""
    kinds = (*[_converse] * 3, _read_long, _leave, *[_burst] * BURST)
    clients = enumerate(itertools.product(servers, kinds))
    with at_work([partial(kind, server.url, random.Random(seed)) for seed, (server, kind) in clients]):
        yield


def _changes(cluster: Cluster, stop: threading.Event) -> None:
    """Changes something every few seconds that the operator must handle."""
    number = 0
    while not stop.wait(4):
        number += 1
        patch = {"metadata": {"annotations": {"example.org/change": str(number)}}}
        cluster.kube.merge("inferenceservices", SERVICES[number % len(SERVICES)], patch, NAMESPACE)


def _converse(url: str, chance: random.Random, stop: threading.Event) -> None:
    while not stop.is_set():
        messages: list[dict[str, str]] = []
        for question in chance.sample(QUESTIONS, 3):
            messages.append({"role": "user", "content": question})
            body = {"messages": messages, "max_tokens": chance.randint(60, 200), "ignore_eos": True}
            reply = _ask(f"{url}/v1/chat/completions", body)
            if not reply or stop.wait(chance.uniform(0.2, 2)):
                break
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or ""})


def _read_long(url: str, chance: random.Random, stop: threading.Event) -> None:
    while not stop.wait(chance.uniform(2, 6)):
        text = f"Part {chance.randint(1, 6)}. " + "The sea is wide and the ship is small. " * chance.randint(20, 60)
        _ask(f"{url}/v1/completions", {"prompt": text, "max_tokens": 30})


def _leave(url: str, chance: random.Random, stop: threading.Event) -> None:
    """Disconnects after the first chunk of a stream."""
    while not stop.wait(chance.uniform(3, 9)):
        body = {"prompt": "Once upon a time", "max_tokens": 250, "ignore_eos": True, "stream": True}
        try:
            with urllib.request.urlopen(_request(f"{url}/v1/completions", body), timeout=ANSWER_S) as reply:
                reply.readline()
        except urllib.error.HTTPError as error:
            _check_refused(error)


def _burst(url: str, chance: random.Random, stop: threading.Event) -> None:
    """Sends one request of many clients at the same time."""
    begun = time.monotonic()
    while not stop.wait(0.3):
        if (time.monotonic() - begun + BURST_S / 2) % BURST_EVERY_S < BURST_S:
            body = {"prompt": chance.choice(QUESTIONS), "max_tokens": 200, "ignore_eos": True}
            _ask(f"{url}/v1/completions", body)


def _ask(url: str, body: object) -> dict[str, list[dict[str, dict[str, str]]]]:
    """Returns the reply. It is empty if the server is full."""
    try:
        with urllib.request.urlopen(_request(url, body), timeout=ANSWER_S) as reply:
            answer: dict[str, list[dict[str, dict[str, str]]]] = json.load(reply)
            return answer
    except urllib.error.HTTPError as error:
        _check_refused(error)
        return {}


def _request(url: str, body: object) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), JSON)


def _check_refused(error: urllib.error.HTTPError) -> None:
    with error:
        if error.code != 429:
            raise error
