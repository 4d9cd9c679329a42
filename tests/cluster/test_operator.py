"""A service's life under a real control plane, with made-up nodes and pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testcluster.cluster import Cluster
from testcluster.kube import Kube, Object
from testcluster.nodes import BEHAVIOUR
from testcluster.operator import OperatorProcess, install
from testcluster.pod_answers import PodAnswers
from testcluster.waiting import wait_for


@pytest.fixture(scope="module")
def answers() -> Iterator[PodAnswers]:
    answers = PodAnswers()
    answers.start()
    yield answers
    answers.stop()


@pytest.fixture(scope="module")
def operator(cluster: Cluster, answers: PodAnswers) -> Iterator[OperatorProcess]:
    install(cluster)
    operator = OperatorProcess(cluster, "operator", answers.url, "--resync-seconds", "5")
    operator.start()
    operator.wait_leading()
    yield operator
    operator.stop()
    assert operator.exit_code == 0, operator.log_tail()


def service(name: str, behaviour: str = "run", **spec: object) -> Object:
    return {
        "apiVersion": "serving.ballast.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"builtin": {}}},
            "resources": {"cpus": 1, "memory": "1Gi", "gpus": 0},
            "scheduling": {"nodeSelector": {BEHAVIOUR: behaviour}},
            **spec,
        },
    }


def conditions(kube: Kube, namespace: str, name: str) -> dict[str, Object]:
    status = kube.get("inferenceservices", name, namespace).get("status", {})
    return {condition["type"]: condition for condition in status.get("conditions", [])}


def wait_condition(kube: Kube, namespace: str, name: str, kind: str, status: str, reason: str = "") -> Object:
    def there() -> Object:
        found = conditions(kube, namespace, name).get(kind, {})
        assert found.get("status") == status, found
        assert reason in ("", found["reason"]), found
        return found

    return wait_for(f"{kind}={status} of {name}", there)


def test_a_service_becomes_ready_and_leaves_nothing_behind(
    operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    kube.apply("inferenceservices", service("tiny"), namespace)
    wait_condition(kube, namespace, "tiny", "Ready", "True")
    wait_condition(kube, namespace, "tiny", "NUMAPinned", "True")
    status = kube.get("inferenceservices", "tiny", namespace)["status"]
    assert status["observedGeneration"] == 1
    assert status["readyReplicas"] == 1
    assert status["placement"] == [
        {"pod": "tiny-0", "node": status["nodes"], "cpus": "1", "memoryNodes": "0", "localPercent": 100}
    ]
    kube.delete("inferenceservices", "tiny", namespace)
    for resource in ("pods", "services", "poddisruptionbudgets"):
        # The garbage collector looks for new kinds only every 30 s.
        wait_for(f"no {resource}", lambda resource=resource: not kube.list(resource, namespace), timeout_s=90)
