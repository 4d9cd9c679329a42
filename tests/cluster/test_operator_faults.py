"""The operator with network and API server failures of every kind; each test ends in the correct state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.invariants import Invariants
from devkit.cluster.faults.proxy import Fault, FaultProxy, Seen, everything, mutations, watches
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import CONVERGED_S, service, wait_ready
from devkit.cluster.waiting import wait_for

CHILDREN = ("pods", "services", "poddisruptionbudgets", "networkpolicies", "configmaps")


@pytest.fixture
def faulty(cluster: Cluster, answers: PodAnswers, proxy: FaultProxy) -> Iterator[OperatorProcess]:
    """An operator that reaches the API server only through the proxy."""
    install(cluster)
    operator = OperatorProcess(cluster, "faulty", answers.url, "--resync-seconds", "5", server=proxy.url)
    operator.start()
    operator.wait_leading()
    yield operator
    proxy.clear()
    proxy.cut()
    operator.stop()


def full(name: str) -> Object:
    return service(name, engine={"placementRules": {"inline": "a: 1"}}, endpoint={"networkPolicy": {}})


def final(kube: Kube, namespace: str, name: str) -> dict[str, list[Object]]:
    """The children without fields that differ between any two runs."""
    found = {}
    for resource in CHILDREN:
        bodies = copy.deepcopy(kube.list(resource, namespace, {"serving.ballast.dev/service": name}))
        for body in bodies:
            metadata = body["metadata"]
            for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace", "generation"):
                metadata.pop(key, None)
            metadata["labels"].pop("serving.ballast.dev/owner-uid")
            metadata["annotations"].pop("serving.ballast.dev/applied-hash", None)
            for owner in metadata["ownerReferences"]:
                owner.pop("uid")
            body.pop("status", None)
            for key in ("clusterIP", "clusterIPs", "nodeName"):
                body.get("spec", {}).pop(key, None)
        found[resource] = bodies
    return found


class KillAtEveryWrite:
    """Kills the operator at the first two writes of each kind: before the first is forwarded, and after the second."""

    def __init__(self, operator: OperatorProcess, proxy: FaultProxy, namespace: str) -> None:
        self._hits: dict[tuple[str, str], int] = {}
        self._namespace = namespace
        self.kills = 0
        self._operator = operator
        proxy.add(Fault(lambda seen: self._is_turn(seen, 1), reset="before", then=self._kill))
        proxy.add(Fault(lambda seen: self._is_turn(seen, 2), reset="after", then=self._kill))

    def _is_turn(self, seen: Seen, turn: int) -> bool:
        if not seen.is_mutating or f"/namespaces/{self._namespace}/" not in seen.path:
            return False
        key = seen.method, seen.path
        if turn == 1:
            self._hits[key] = self._hits.get(key, 0) + 1
        return self._hits[key] == turn

    def _kill(self) -> None:
        self.kills += 1
        self._operator.kill()

    def revive(self) -> None:
        if not self._operator.is_running:
            self._operator.start()


@pytest.mark.timeout(900)
def test_a_run_killed_around_every_write_reaches_the_same_state_as_a_clean_run(
    kube: Kube, namespace: str, faulty: OperatorProcess, proxy: FaultProxy
) -> None:
    def done(name: str, cache_lens: int, children: int) -> bool:
        body = kube.get("inferenceservices", name, namespace)
        status = body.get("status") or {}
        found = {c["type"]: c for c in status.get("conditions", [])}.get("Ready", {})
        pods = kube.list("pods", namespace, {"serving.ballast.dev/service": name})
        return (
            found.get("status") == "True"
            and found["observedGeneration"] == body["metadata"]["generation"]
            and all(str(cache_lens) in pod["spec"]["containers"][0]["args"] for pod in pods)
            and sum(map(len, final(kube, namespace, name).values())) == children
        )

    def live(name: str, timeout_s: float, meanwhile: Callable[[], object]) -> dict[str, list[Object]]:
        """Create, update and remove children; return the remaining ones."""
        for cache_lens, make, children in ((5000, full, 5), (6000, full, 5), (6000, service, 3)):
            body = make(name)
            body["spec"].setdefault("engine", {})["cacheLens"] = cache_lens
            kube.apply("inferenceservices", body, namespace)
            wait_for(
                f"{name} with {children} children",
                lambda want=(cache_lens, children): (meanwhile(), done(name, *want))[1],
                timeout_s,
                interval_s=0.2,
            )
        return final(kube, namespace, name)

    clean = live("clean", CONVERGED_S, faulty.check)
    kube.delete("inferenceservices", "clean", namespace)

    killer = KillAtEveryWrite(faulty, proxy, namespace)
    with Invariants(kube, namespace):
        killed = live("clear", 600, killer.revive)
    assert killer.kills >= 14
    assert str(killed).replace("clear", "clean") == str(clean)

    faulty.kill()
    kube.delete("inferenceservices", "clear", namespace)
    wait_for("all objects to be deleted", lambda: not any(final(kube, namespace, "clear").values()), timeout_s=180)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(mutations(), status=409, times=4),
        Fault(everything, status=429, retry_after_s=2, times=4),
        Fault(everything, status=500, times=8),
        Fault(everything, status=401, times=6),
        Fault(everything, status=403, times=6),
        Fault(everything, reset="before", times=6),
        Fault(everything, reset="mid-body", times=5),
        Fault(mutations(), reset="after", times=4),
        Fault(watches(), gone=True, times=5),
        Fault(watches(), status=500, times=8),
        Fault(lambda seen: not seen.is_watch, delay_s=5, times=6),
    ],
    ids=["409", "429", "500", "401", "403", "reset", "reset-mid-body", "unheard", "410", "watch-500", "5s-latency"],
)
def test_a_fault_that_passes_by_itself(
    kube: Kube, namespace: str, faulty: OperatorProcess, proxy: FaultProxy, fault: Fault
) -> None:
    pid = faulty.pid
    fault.hits = 0
    with Invariants(kube, namespace):
        proxy.add(fault)
        proxy.cut()
        kube.apply("inferenceservices", full("through"), namespace)
        wait_ready(kube, namespace, "through", CONVERGED_S, faulty.check)
    assert fault.hits
    assert (faulty.is_running, faulty.pid) == (True, pid)
    assert faulty.http("/livez").status_code == 200


def test_a_watch_that_stalls_and_one_that_misses_a_deletion(
    kube: Kube, namespace: str, faulty: OperatorProcess, proxy: FaultProxy
) -> None:
    with Invariants(kube, namespace):
        kube.apply("inferenceservices", full("stalled"), namespace)
        wait_ready(kube, namespace, "stalled", CONVERGED_S, faulty.check)
        proxy.freeze_watches()
        kube.delete("services", "stalled", namespace)
        kube.apply("inferenceservices", full("unseen"), namespace)
        wait_ready(kube, namespace, "unseen", CONVERGED_S, faulty.check)
        wait_for("the Service again", lambda: kube.find("services", "stalled", namespace), CONVERGED_S)


def test_a_replaced_and_revoked_token_is_followed(
    kube: Kube, namespace: str, faulty: OperatorProcess, proxy: FaultProxy
) -> None:
    pid = faulty.pid
    with Invariants(kube, namespace):
        kube.apply("inferenceservices", full("earlier"), namespace)
        wait_ready(kube, namespace, "earlier", CONVERGED_S, faulty.check)
        faulty.rotate_token()
        kube.delete("services", "earlier", namespace)
        kube.apply("inferenceservices", full("later"), namespace)
        wait_ready(kube, namespace, "later", CONVERGED_S, faulty.check)
        wait_for("the Service again", lambda: kube.find("services", "earlier", namespace), CONVERGED_S)
        assert faulty.metric('ballast_operator_api_requests_total{code="401",verb="list"}') == 0.0, "never twice"
    assert (faulty.is_running, faulty.pid) == (True, pid)


def test_an_api_server_that_restarts(cluster: Cluster, kube: Kube, namespace: str, faulty: OperatorProcess) -> None:
    pid = faulty.pid
    with Invariants(kube, namespace):
        kube.apply("inferenceservices", full("before"), namespace)
        cluster.control_plane.restart_apiserver()
        kube.apply("inferenceservices", full("after"), namespace)
        wait_ready(kube, namespace, "before", CONVERGED_S, faulty.check)
        wait_ready(kube, namespace, "after", CONVERGED_S, faulty.check)
    assert (faulty.is_running, faulty.pid) == (True, pid)
