"""Readiness and log of the operator while its definition is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube
from devkit.cluster.service.operator import CRD, OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for

DEFINITION = "inferenceservices.serving.ballast.dev"


@pytest.fixture
def replicas(cluster: Cluster, answers: PodAnswers) -> Iterator[list[OperatorProcess]]:
    """The leader and a standby replica, on a cluster whose definition is restored afterwards."""
    install(cluster)
    replicas = [
        OperatorProcess(cluster, f"replica-{number}", answers.url, "--resync-seconds", "5") for number in range(2)
    ]
    replicas[0].start()
    replicas[0].wait_leading()
    replicas[1].start()
    yield replicas
    for replica in replicas:
        replica.stop()
    cluster.install(CRD)


def ready(replica: OperatorProcess) -> int:
    return replica.http("/readyz").status_code


def test_without_the_crd_no_operator_replica_is_ready_and_no_traceback_is_logged(
    cluster: Cluster, kube: Kube, namespace: str, replicas: list[OperatorProcess]
) -> None:
    kube.apply("inferenceservices", service("first"), namespace)
    wait_ready(kube, namespace, "first")
    assert [ready(replica) for replica in replicas] == [200, 200]
    kube.delete("customresourcedefinitions", DEFINITION)
    for replica in replicas:
        wait_for("a replica that is not ready", lambda replica=replica: ready(replica) == 503)
        assert DEFINITION in replica.http("/readyz").text
        assert replica.http("/livez").status_code == 200
    cluster.install(CRD)
    for replica in replicas:
        wait_for("a replica that is ready", lambda replica=replica: ready(replica) == 200)
    kube.apply("inferenceservices", service("second"), namespace)
    wait_ready(kube, namespace, "second")
    assert "Traceback" not in replicas[0].log_path.read_text()
