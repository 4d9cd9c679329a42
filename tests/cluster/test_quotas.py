"""The operator's quotas: all services of a namespace share them, and the status reports what is exceeded."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

PODS = 3
SETTLED_S = 6
"""Longer than one resync of the operator."""


@pytest.fixture(scope="module", autouse=True)
def operator(cluster: Cluster, answers: PodAnswers) -> Iterator[OperatorProcess]:
    """An operator with the same quota for each namespace."""
    install(cluster)
    quota = f"--quota=*:pods={PODS},memory=8Gi"
    operator = OperatorProcess(cluster, "quotas", answers.url, "--resync-seconds", "5", quota)
    operator.start()
    operator.wait_leading()
    yield operator
    operator.stop()
    assert operator.exit_code == 0, operator.log_tail()


def pods(kube: Kube, namespace: str) -> list[Object]:
    return kube.list("pods", namespace)


def test_a_pod_beyond_the_quota_waits_until_another_service_is_deleted(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("first", replicas=2), namespace)
    wait_ready(kube, namespace, "first")
    kube.apply("inferenceservices", service("second", replicas=2), namespace)
    found = wait_condition(kube, namespace, "second", "Ready", "False", "ChildRefused")
    assert "the operator's quota (--quota) rejects Pod second-1: pods: 3 of 3 are used" in found["message"]
    assert len(pods(kube, namespace)) == PODS
    kube.delete("inferenceservices", "first", namespace)
    wait_ready(kube, namespace, "second")


def test_a_full_quota_does_not_block_rollouts_and_a_too_large_pod_keeps_the_old_one(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("full", replicas=PODS), namespace)
    wait_ready(kube, namespace, "full")
    kube.merge("inferenceservices", "full", {"spec": {"engine": {"chunkSize": 128}}}, namespace)
    wait_ready(kube, namespace, "full")
    before = {pod["metadata"]["uid"] for pod in pods(kube, namespace)}
    kube.merge("inferenceservices", "full", {"spec": {"resources": {"memory": "7Gi"}}}, namespace)
    found = wait_condition(kube, namespace, "full", "Ready", "False", "ChildRefused")
    assert "memory: 2.0Gi of 8Gi are used and the pod requests 7.0Gi" in found["message"]
    assert {pod["metadata"]["uid"] for pod in pods(kube, namespace)} == before


def test_services_that_start_together_never_exceed_the_quota(kube: Kube, namespace: str) -> None:
    for number in range(6):
        kube.apply("inferenceservices", service(f"at-once-{number}"), namespace)
    wait_for("the quota to be fully used", lambda: len(pods(kube, namespace)) == PODS)
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        assert len(pods(kube, namespace)) == PODS
        time.sleep(0.2)
