"""Whatever the API server answers, the operator ends where it should, without being restarted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from testcluster.cluster import Cluster
from testcluster.fault_proxy import Fault, FaultProxy
from testcluster.faults import FAULTS, Scene, time_to_converge
from testcluster.invariants import invariants_hold
from testcluster.live_service import LiveService
from testcluster.operator import OperatorProcess, install
from testcluster.pod_answers import PodAnswers
from testcluster.waiting import wait_for

HOLD_S = 4
CONVERGE_S = 90
NAMESPACE = "faults"


@pytest.fixture(scope="module")
def scene(cluster: Cluster, answers: PodAnswers) -> Iterator[tuple[Scene, OperatorProcess]]:
    """One operator behind a proxy, with one service that is Ready."""
    install(cluster)
    cluster.make_namespace(NAMESPACE)
    proxy = cluster.proxy()
    proxy.start()
    operator = operator_in(cluster, NAMESPACE, answers, proxy.url)
    operator.start()
    operator.wait_leading()
    service = LiveService(cluster.kube, NAMESPACE, "shaken")
    service.create()
    service.wait_converged()
    yield Scene(cluster, proxy, service, HOLD_S), operator
    operator.stop()
    proxy.stop()
    cluster.kube.delete("namespaces", NAMESPACE)


def operator_in(cluster: Cluster, namespace: str, answers: PodAnswers, server: str) -> OperatorProcess:
    """An operator that looks at this namespace only, with a lease of its own."""
    own = ("--namespace", namespace, "--lease-name", namespace, "--resync-seconds", "5")
    return OperatorProcess(cluster, f"operator-{namespace}", answers.url, *own, server=server)


batch_sizes = count(5)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_converged(scene: tuple[Scene, OperatorProcess], cluster: Cluster, fault: str) -> None:
    place, operator = scene
    pid = operator.pid
    with invariants_hold(cluster.kube, NAMESPACE):
        time_to_converge(fault, place, next(batch_sizes), CONVERGE_S)
    operator.check()
    assert operator.pid == pid
    assert operator.http("/livez").status_code == 200


def test_a_life_with_a_kill_before_and_after_every_write_ends_as_a_clean_one(
    cluster: Cluster, answers: PodAnswers, namespace: str
) -> None:
    """Every changing call is first lost before it reaches the server, and once made again, lost after it did."""
    install(cluster)
    clean_namespace = cluster.make_namespace(f"{namespace[:50]}-clean")
    clean, _ = live(cluster, clean_namespace, answers, killing=False)
    killed, kills = live(cluster, namespace, answers, killing=True)
    for got, wanted in zip(killed, clean, strict=True):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert got[name] == wanted[name]
    # Service, PDB, pod and status of the create; the pod's end, the next pod and the status of the update: each twice.
    assert kills >= 2 * (4 + 3)
    cluster.kube.delete("namespaces", clean_namespace)


def live(cluster: Cluster, namespace: str, answers: PodAnswers, killing: bool) -> tuple[list[dict[str, str]], int]:
    """(final objects after the create and after the update, kills) of a service's life up to its end."""
    proxy = cluster.proxy()
    proxy.start()
    operator = operator_in(cluster, namespace, answers, proxy.url)
    operator.start()
    kills = add_kills(proxy, operator) if killing else ()
    service = LiveService(cluster.kube, namespace, "life")
    finals: list[dict[str, str]] = []

    def converged() -> bool:
        if not operator.is_running:
            operator.start()
        return service.is_converged()

    with invariants_hold(cluster.kube, namespace):
        service.create()
        wait_for("the create", converged, timeout_s=200)
        finals.append(service.final_objects())
        service.change(engine={"maxBatchSize": 2}, numa={"enforcement": "Prefer"})
        wait_for("the update", converged, timeout_s=200)
        finals.append(service.final_objects())
        operator.kill()
        service.delete()
        operator.start()
        service.wait_gone()
    operator.stop()
    proxy.stop()
    return finals, sum(kill.hits for kill in kills)


def add_kills(proxy: FaultProxy, operator: OperatorProcess) -> tuple[Fault, Fault]:
    """Odd writes are lost before the server, even ones after it; the operator dies at that moment."""
    writes = count(1)
    before = Fault(lambda seen: seen.is_mutating and next(writes) % 2 == 1, reset="before", then=operator.kill)
    after = Fault(lambda seen: seen.is_mutating, reset="after", then=operator.kill)
    return proxy.add(before), proxy.add(after)
