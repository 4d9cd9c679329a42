"""Many services at the same time, and the cost of an idle cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from devkit.cluster.audit import AuditLog, Call
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.operator import USER, OperatorProcess
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for
from devkit.long import times

NUM_SERVICES = times(25, 200)
MAX_MEMORY_BYTES = 150 * 2**20
PAUSE_S = 6
"""Longer than one resync of the operator under test."""
REST_S = 12
"""More than two."""


Changes = Callable[[AuditLog, float], list[Call]]


@pytest.fixture
def changes_within(operator: OperatorProcess, kube: Kube) -> Changes:
    """The operator's writes since the last call and within the given number of seconds, except to its lease.

    Ignores the terminating namespaces of earlier tests, in which the operator still cleans up.
    """
    ending = {each["metadata"]["name"] for each in kube.list("namespaces") if "deletionTimestamp" in each["metadata"]}

    def within(audit: AuditLog, seconds: float) -> list[Call]:
        time.sleep(seconds)
        return [call for call in audit.new_writes(USER) if call.resource != "leases" and call.namespace not in ending]

    return within


@pytest.mark.timeout(1200)
def test_many_services_converge_and_then_nothing_is_written(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str, changes_within: Changes
) -> None:
    for number in range(NUM_SERVICES):
        kube.create("inferenceservices", service(f"s{number}"), namespace)

    def num_ready() -> int:
        bodies = kube.list("inferenceservices", namespace)
        found = [
            c["status"] for body in bodies for c in body.get("status", {}).get("conditions", []) if c["type"] == "Ready"
        ]
        return found.count("True")

    def all_ready() -> bool:
        ready = num_ready()
        assert ready == NUM_SERVICES, f"{ready} are ready"
        return True

    wait_for("every service to be ready", all_ready, timeout_s=400, interval_s=1)
    pods = kube.list("pods", namespace)
    assert len(pods) == NUM_SERVICES
    audit = cluster.audit()

    def pauses() -> bool:
        calls = changes_within(audit, PAUSE_S)
        assert not calls, f"{len(calls)} writes, the last one {calls[-1]}"
        return True

    wait_for("a pause", pauses, timeout_s=300)
    assert changes_within(audit, REST_S) == []
    assert operator.rss_bytes() <= MAX_MEMORY_BYTES
    assert operator.metric("ballast_operator_watch_stale_seconds") == 0.0
    for number in range(NUM_SERVICES):
        kube.delete("inferenceservices", f"s{number}", namespace)


@pytest.mark.timeout(600)
def test_nothing_is_written_in_a_terminating_namespace(
    cluster: Cluster, kube: Kube, namespace: str, changes_within: Changes
) -> None:
    kube.create("inferenceservices", service("ending"), namespace)
    wait_ready(kube, namespace, "ending")
    # Pods go first, so one that stays keeps the service from being deleted.
    kube.create("pods", lasting_pod("lasting"), namespace)
    kube.delete("namespaces", namespace)
    wait_for(
        "the pods to be deleted",
        lambda: [pod["metadata"]["name"] for pod in kube.list("pods", namespace)] == ["lasting"],
    )
    changes_within(cluster.audit(), PAUSE_S)
    audit = cluster.audit()
    kube.merge("inferenceservices", "ending", {"metadata": {"annotations": {"touched": "yes"}}}, namespace)
    assert changes_within(audit, PAUSE_S) == []
    kube.merge("pods", "lasting", {"metadata": {"finalizers": None}}, namespace)


def removes_by_force(kube: Kube, namespace: str) -> bool:
    """Remove a namespace that ends before its objects are gone. False if its controller has just changed it."""
    try:
        kube.put("namespaces", namespace, "finalize", kube.get("namespaces", namespace) | {"spec": {"finalizers": []}})
    except ApiError as error:
        if error.code == 409:
            return False
        raise
    return True


@pytest.mark.timeout(600)
def test_a_service_that_outlived_its_namespace_is_not_reconciled(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, changes_within: Changes
) -> None:
    namespace = cluster.make_namespace("outlived")
    kube.create("inferenceservices", service("ghost"), namespace)
    wait_ready(kube, namespace, "ghost")
    operator.kill()
    try:
        kube.create("pods", lasting_pod("lasting"), namespace)
        kube.delete("namespaces", namespace)
        wait_for("the pods to be deleted", lambda: len(kube.list("pods", namespace)) == 1)
        wait_for("the namespace to be removed by force", lambda: removes_by_force(kube, namespace))
        assert kube.find("namespaces", namespace) is None
        assert "deletionTimestamp" not in kube.get("inferenceservices", "ghost", namespace)["metadata"]
        audit = cluster.audit()
    finally:
        operator.start()
        operator.wait_leading()
    try:
        wait_for(
            "the operator to leave it alone",
            lambda: "deleted or is gone" in operator.log_path.read_text(),
            timeout_s=60,
        )
        changes_within(audit, PAUSE_S)
        assert changes_within(audit, REST_S) == []
    finally:
        kube.delete("inferenceservices", "ghost", namespace)
        kube.delete("pods", "lasting", namespace, gracePeriodSeconds=0)


def lasting_pod(name: str) -> Object:
    """A pod with a finalizer that blocks its deletion. It has no node, because kwok would remove the finalizer."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "c", "image": "example.org/none", "securityContext": restricted}
    return {
        "metadata": {"name": name, "finalizers": ["example.org/lasting"]},
        "spec": {"containers": [container], "schedulerName": "none"},
    }


def test_lost_permissions_restart_nothing_and_restored_ones_resume_work(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    role = kube.get("clusterroles", "ballast-operator")
    kube.merge("clusterroles", "ballast-operator", {"rules": []})
    pid = operator.pid
    kube.create("inferenceservices", service("later"), namespace)
    wait_for(
        "a refused request", lambda: operator.metric('ballast_operator_api_requests_total{code="403",verb="list"}') > 0
    )
    assert operator.http("/livez").status_code == 200
    kube.merge("clusterroles", "ballast-operator", {"rules": role["rules"]})
    wait_ready(kube, namespace, "later")
    assert (operator.is_running, operator.pid) == (True, pid)


def test_another_replica_takes_over_when_the_leader_dies(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    second = OperatorProcess(cluster, "second", operator.argv[operator.argv.index("--probe-proxy") + 1])
    second.start()
    try:
        wait_for("the second to listen", lambda: second.http("/livez").status_code == 200)
        assert second.metric("ballast_operator_leading") == 0.0
        operator.kill()
        kube.create("inferenceservices", service("after"), namespace)
        wait_ready(kube, namespace, "after")
        assert second.metric("ballast_operator_leading") == 1.0
    finally:
        second.stop()
        operator.start()
        operator.wait_leading()


def test_the_newer_of_two_processes_of_one_identity_leads_and_the_older_reports_it(
    cluster: Cluster, operator: OperatorProcess, kube: Kube
) -> None:
    proxy_url = operator.argv[operator.argv.index("--probe-proxy") + 1]
    twin = OperatorProcess(cluster, "twin", proxy_url, "--identity", operator.name)

    def leaders() -> list[str]:
        return [each.name for each in (operator, twin) if each.metric("ballast_operator_leading") == 1.0]

    def transitions() -> object:
        return kube.get("leases", "ballast-operator", "ballast-system")["metadata"]["annotations"]

    twin.start()
    try:
        twin.wait_leading()
        wait_for("one leader", lambda: leaders() == ["twin"])
        assert "another process with this identity took the lease" in operator.log_path.read_text()
        before = transitions()
        time.sleep(REST_S)
        assert (leaders(), transitions()) == (["twin"], before)
    finally:
        twin.stop()
    operator.wait_leading()
