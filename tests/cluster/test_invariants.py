"""The invariant checks detect violations, and report nothing else."""

from __future__ import annotations

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.invariants import Invariants
from devkit.cluster.service.operator import install
from devkit.cluster.service.specs import service
from devkit.cluster.waiting import wait_for


def change(cluster: Cluster, namespace: str, *statuses: str) -> None:
    """Write conditions of a service without an operator, each with a later time, while the invariants are checked."""
    install(cluster)
    cluster.kube.create("inferenceservices", service("s"), namespace)

    def write(status: str, second: int) -> None:
        condition = {
            "type": "Progressing",
            "status": status,
            "lastTransitionTime": f"2026-01-01T00:00:0{second}Z",
            "reason": "Test",
            "message": "",
            "observedGeneration": 1,
        }
        status_of_all = {"status": {"conditions": [condition]}}
        cluster.kube.merge("inferenceservices", "s", status_of_all, namespace, subresource="status")

    write("True", 0)
    with Invariants(cluster.kube, namespace) as invariants:
        wait_for("a look", lambda: invariants.looks)
        for second, status in enumerate(statuses, start=1):
            write(status, second)
        looks = invariants.looks
        wait_for("two more checks", lambda: invariants.looks > looks + 1)


def test_a_condition_that_changes_and_reverts_between_two_checks(cluster: Cluster, namespace: str) -> None:
    change(cluster, namespace, "False", "True", "False", "True")


@pytest.mark.parametrize("statuses", [("True",), ("False", "True", "True")])
def test_a_change_of_only_a_timestamp(cluster: Cluster, namespace: str, statuses: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="s: Progressing changed its time and not its status"):
        change(cluster, namespace, *statuses)
