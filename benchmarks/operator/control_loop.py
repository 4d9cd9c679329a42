"""Cost and speed of the operator with 200 services on a real control plane. Prints one JSON line per case.

    python benchmarks/operator/control_loop.py [--services N] [--rest SECONDS]

Nodes and pods are simulated. The API server, etcd, the scheduler and the operator are real and share this machine's
CPUs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))

from devkit.bench_record import bench_record
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube
from devkit.cluster.service.live_service import LiveService
from devkit.cluster.service.operator import USER, OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service
from devkit.cluster.waiting import wait_for

NAMESPACE = "bench"
RESYNC_S = 30
NUM_CREATED = 20
GOAL_MEMORY_MB = 150
GOAL_RECONCILE_CPU_MS = 50
GOAL_CREATE_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--rest", type=int, default=300, help="seconds in which the operator must write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        answers = PodAnswers(cluster.kube)
        cluster.start()
        answers.start()
        install(cluster)
        operator = OperatorProcess(cluster, "operator", answers.url, "--resync-seconds", str(RESYNC_S))
        try:
            cluster.make_namespace(NAMESPACE)
            operator.start()
            operator.wait_leading()
            measure_creates(cluster.kube)
            measure_many(cluster.kube, operator, arguments.services)
            measure_rest(cluster, operator, arguments.services, arguments.rest)
        finally:
            operator.stop()
            answers.stop()
            cluster.stop()


def report(case: str, **figures: float) -> None:
    print(bench_record("operator/control_loop", case, **figures), flush=True)


def measure_creates(kube: Kube) -> None:
    """Seconds from the response to the create request until every child can be read, one service after the other."""
    seconds = []
    for number in range(NUM_CREATED):
        one = LiveService(kube, NAMESPACE, f"one{number}")
        one.create()
        began = time.perf_counter()
        wait_for("the children", partial(has_children, one), interval_s=0.01)
        seconds.append(time.perf_counter() - began)
        one.delete()
    wait_for("their deletion", lambda: not kube.list("pods", NAMESPACE), timeout_s=120)
    figures = {"median_s": statistics.median(seconds), "max_s": max(seconds), "goal_s": GOAL_CREATE_S}
    report(f"create to children applied, {NUM_CREATED} times", **{k: round(v, 3) for k, v in figures.items()})


def has_children(one: LiveService) -> bool:
    return all(one.children(resource) for resource in ("services", "poddisruptionbudgets", "pods"))


def measure_many(kube: Kube, operator: OperatorProcess, num_services: int) -> None:
    cpu_s, began = operator.cpu_s(), time.perf_counter()
    for number in range(num_services):
        kube.create("inferenceservices", service(f"s{number}"), NAMESPACE)
    created_s = time.perf_counter() - began

    def all_ready() -> bool:
        bodies = kube.list("inferenceservices", NAMESPACE)
        conditions = [c for body in bodies for c in body.get("status", {}).get("conditions", [])]
        num_ready = sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return bool(num_ready == num_services)

    wait_for("all to be ready", all_ready, timeout_s=600, interval_s=0.5)
    report(
        f"{num_services} concurrent services",
        seconds_to_create_them=round(created_s, 1),
        seconds_to_all_ready=round(time.perf_counter() - began, 1),
        operator_cpu_s=round(operator.cpu_s() - cpu_s, 1),
        operator_memory_mb=round(operator.rss_bytes() / 2**20),
        goal_memory_mb=GOAL_MEMORY_MB,
    )


def measure_rest(cluster: Cluster, operator: OperatorProcess, num_services: int, rest_s: int) -> None:
    """Lets resyncs run that find nothing to do, then makes every service reconcile, which again changes nothing."""
    time.sleep(10)
    audit, cpu_s = cluster.audit(), operator.cpu_s()
    time.sleep(rest_s)
    rest_cpu_s = operator.cpu_s() - cpu_s
    calls = audit.new_calls(lambda call: call.user == USER)
    writes = [call for call in calls if call.is_write and call.resource != "leases"]
    report(
        f"{num_services} services at rest for {rest_s} s",
        writes=len(writes),
        calls=len(calls),
        cpu_percent=round(100 * rest_cpu_s / rest_s, 2),
        memory_mb=round(operator.rss_bytes() / 2**20),
        goal_writes=0,
    )
    count = "ballast_operator_reconcile_seconds_count"
    before, cpu_s, began = operator.metric(count), operator.cpu_s(), time.perf_counter()
    stamp = datetime.now().isoformat()
    for number in range(num_services):
        note = {"metadata": {"annotations": {"bench": stamp}}}
        cluster.kube.merge("inferenceservices", f"s{number}", note, NAMESPACE)
    wait_for("the reconciles", lambda: operator.metric(count) - before >= num_services, timeout_s=300, interval_s=0.5)
    time.sleep(2)
    reconciles = operator.metric(count) - before
    spent_s = operator.cpu_s() - cpu_s - rest_cpu_s / rest_s * (time.perf_counter() - began)
    report(
        "a reconcile without a change",
        reconciles=reconciles,
        cpu_ms=round(1000 * spent_s / reconciles, 1),
        goal_cpu_ms=GOAL_RECONCILE_CPU_MS,
    )


if __name__ == "__main__":
    main()
