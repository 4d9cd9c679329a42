"""A real Prometheus scrapes a real engine under load and the operator: dashboards and alerts query existing metrics."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from devkit.cluster.cluster import Cluster
from devkit.cluster.helm import Helm
from devkit.cluster.kube import Kube, Object, documents
from devkit.cluster.prometheus import Prometheus
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for
from devkit.servers.at_work import at_work
from devkit.servers.process import ServerProcess
from tools.dashboards.answers import Choices, Window, answers, filled_in, marks
from tools.dashboards.pictures import boards

MONITORING = "--api-versions=monitoring.coreos.com/v1/PrometheusRule"
NAME = re.compile(r"\b(?:ballast|process|vllm)[a-z_:]*[a-z]\b")
LOAD_TIMEOUT_S = 180
CHOICES = Choices(rate_interval="10s")
UNKNOWN_ON_SOME_MACHINES = {"ballast_numa_local_ratio", "ballast_numa_expert_bytes"}


KEDA = Path(__file__).parents[2] / "manifests/samples/keda.yaml"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Object:
    helm = Helm(tmp_path_factory.mktemp("helm"))
    (found,) = [body for body in helm.template(MONITORING) if body["kind"] == "PrometheusRule"]
    spec: Object = found["spec"]
    return spec


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tier = ("--kv_disk_dir", str(tmp_path_factory.mktemp("kv")), "--kv_disk_bytes", "64MiB")
    with ServerProcess("--admin_port", "0", "--max_batch_size", "2", "--max_queue", "2", *tier) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(
    cluster: Cluster,
    operator: OperatorProcess,
    engine: ServerProcess,
    rules: Object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Prometheus after it has scraped the engine during a few seconds of overload."""
    namespace = cluster.make_namespace("monitored")
    cluster.kube.apply("inferenceservices", service("tiny"), namespace)
    wait_ready(cluster.kube, namespace, "tiny")
    folder = tmp_path_factory.mktemp("prometheus")
    rules_file = folder / "rules.yaml"
    rules_file.write_text(yaml.safe_dump(rules))
    targets = {
        f"127.0.0.1:{engine.admin_port}": {"namespace": namespace, "service": "tiny", "pod": "tiny-0"},
        operator.health_address: {"pod": "operator-0"},
    }
    prometheus = Prometheus(folder, targets, rules_file)
    prometheus.start()
    try:
        wait_for("Prometheus to be ready", prometheus.is_ready)
        wait_for("both targets to be scraped", lambda: prometheus.num_healthy_targets() == 2)
        with load(engine), changes(cluster.kube, namespace, "tiny"):
            passes = 'rate(ballast_operator_reconciles_total{result="ok"}[10s]) > 0'
            busy = f"rate(ballast_generation_tokens_total[10s]) > 0 and on () {passes}"
            wait_for("tokens and passes to be counted", lambda: prometheus.query(busy), timeout_s=LOAD_TIMEOUT_S)
            yield prometheus
    finally:
        prometheus.stop()
        cluster.kube.delete("namespaces", namespace)


@contextmanager
def load(engine: ServerProcess) -> Iterator[None]:
    """Six clients for two slots and a queue of two: some wait, some are rejected."""

    def ask(stop: threading.Event) -> None:
        body = json.dumps({"prompt": "The sea is " * 20, "max_tokens": 40, "ignore_eos": True}).encode()
        request = urllib.request.Request(f"{engine.url}/v1/completions", body, {"Content-Type": "application/json"})
        while not stop.is_set():
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    reply.read()
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 429:
                        raise
                stop.wait(0.1)

    with at_work([ask] * 6):
        yield


@contextmanager
def changes(kube: Kube, namespace: str, name: str) -> Iterator[None]:
    """Changes for the operator to process, twice a second."""

    def change(stop: threading.Event) -> None:
        number = 0
        while not stop.wait(0.5):
            number += 1
            patch = {"metadata": {"annotations": {"test.ballast.dev/change": str(number)}}}
            kube.merge("inferenceservices", name, patch, namespace)

    with at_work([change]):
        yield


def panels() -> list[tuple[str, str]]:
    """Each query of each dashboard as Grafana sends it, named by its panel."""
    return [
        (f"{name}: {panel['title']} {target['refId']}", filled_in(target["expr"], board, CHOICES))
        for name, board in boards().items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def marked() -> list[str]:
    """The queries of the dashboards' annotations, which usually have no result."""
    return [
        filled_in(mark["expr"], board, CHOICES) for board in boards().values() for mark in board["annotations"]["list"]
    ]


def unknown_here(engine: ServerProcess) -> set[str]:
    """Metrics that the kernel of this machine cannot provide, as reported by the engine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{engine.admin_port}/debug/numa", timeout=30) as reply:
        report = json.load(reply)
    return UNKNOWN_ON_SOME_MACHINES if report["share_local"] is None else set()


def test_every_name_in_dashboards_and_alerts_is_scraped(
    prometheus: Prometheus, engine: ServerProcess, rules: Object
) -> None:
    expressions = [expression for _, expression in panels()] + marked()
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    wanted = {name for expression in expressions for name in NAME.findall(re.sub(r'"[^"]*"', "", expression))}
    assert len(wanted) > 30
    unknown = unknown_here(engine)

    def all_scraped() -> bool:
        assert wanted - prometheus.names() <= unknown
        return True

    wait_for("every name", all_scraped, LOAD_TIMEOUT_S)


def test_every_query_of_the_dashboards_returns_numbers_under_load(
    prometheus: Prometheus, engine: ServerProcess
) -> None:
    unknown = unknown_here(engine)
    requested = [(name, query) for name, query in panels() if not unknown & set(NAME.findall(query))]
    assert len(requested) > 40

    def numbers(expression: str) -> bool:
        return any(sample["value"][1] != "NaN" for sample in prometheus.query(expression))

    def none_is_empty() -> bool:
        assert [(name, query) for name, query in requested if not numbers(query)] == []
        return True

    wait_for("every query to return numbers", none_is_empty, LOAD_TIMEOUT_S, interval_s=1)


def test_every_panel_has_something_to_draw(prometheus: Prometheus, engine: ServerProcess) -> None:
    """Queries a time range, like the documentation's pictures."""
    end = time.time()
    window = Window(end - 10, end, 1)
    unknown = unknown_here(engine)
    for board in boards().values():
        found = answers(board, prometheus, window, CHOICES)
        requested = {panel["id"]: str(panel["targets"]) for panel in board["panels"] if panel["type"] != "row"}
        assert set(found) == set(requested)
        empty = [queries for number, queries in requested.items() if not found[number]]
        assert [queries for queries in empty if not any(name in queries for name in unknown)] == []
        marks(board, prometheus, window, CHOICES)  # raises an error if Prometheus cannot parse it


def test_keda_s_sample_counts_the_requests_of_its_own_namespace(prometheus: Prometheus) -> None:
    (scaled,) = [body for body in documents(KEDA) if body["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"].replace('service="scaled"', 'service="tiny"')
    assert 'namespace="default"' in query
    (here,) = {series["metric"]["namespace"] for series in prometheus.query('ballast_requests_waiting{service="tiny"}')}
    assert prometheus.query(query) == [], "the service is in another namespace"
    assert len(prometheus.query(query.replace('namespace="default"', f'namespace="{here}"'))) == 1


def test_prometheus_evaluates_every_rule(prometheus: Prometheus, rules: Object) -> None:
    num_rules = sum(len(group["rules"]) for group in rules["groups"])

    def healthy() -> bool:
        found = prometheus.rules()
        assert [rule for rule in found if rule["health"] == "err"] == []
        assert [rule["health"] for rule in found] == ["ok"] * num_rules
        return True

    wait_for("every rule to be evaluated", healthy)


def test_dashboards_have_the_format_of_grafanas_sidecar(tmp_path: Path) -> None:
    helm = Helm(tmp_path)
    maps = [body for body in helm.template("--set=monitoring.dashboards.enabled=true") if body["kind"] == "ConfigMap"]
    assert {body["metadata"]["labels"]["grafana_dashboard"] for body in maps} == {"1"}
    installed = [json.loads(text) for body in maps for text in body["data"].values()]
    assert {board["uid"] for board in installed} == {"ballast-service", "ballast-fleet"}
    for board in installed:
        assert {variable["name"] for variable in board["templating"]["list"]} >= {"datasource", "namespace"}
        shown = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert all(panel["description"] and panel["datasource"]["uid"] == "${datasource}" for panel in shown)
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
