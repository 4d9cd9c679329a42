"""Two replicas on two nodes, with continuous client traffic: no request fails while pods are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from devkit.cluster.kube import Kube
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.real import Node
from devkit.cluster.nodes.served import NAMESPACE, address_of, engine_pods, sample, served
from devkit.cluster.nodes.traffic import KINDS, Traffic, traffic
from devkit.cluster.waiting import wait_for

NAME = "tiny-cpu"
ROLLOUT_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def second_node(installed: InstalledNode) -> Iterator[Node]:
    with installed.second_node() as node:
        yield node


@pytest.fixture(scope="module")
def address(installed: InstalledNode, second_node: Node) -> Iterator[str]:
    """Address of a Service with two replicas, each ready on its own node: a node has one allocatable whole CPU."""
    with served(installed, sample(NAME, replicas=2)):
        pods = engine_pods(installed.kube, NAME)
        assert {pod["spec"]["nodeName"] for pod in pods} == {installed.node.name, second_node.name}
        yield address_of(installed, NAME)


def ready_uids(kube: Kube) -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in engine_pods(kube, NAME)
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    }


def flows(found: Traffic) -> None:
    """Wait until every kind of client has got a few more replies."""
    before = found.served.copy()
    wait_for(
        "traffic",
        lambda: all(found.served[kind.name] >= before[kind.name] + 3 for kind in KINDS),
        timeout_s=60,
    )


def test_no_request_fails_during_a_rolling_restart(installed: InstalledNode, kube: Kube, address: str) -> None:
    before = ready_uids(kube)
    assert len(before) == 2
    with traffic(address) as found:
        flows(found)
        restarted = {"metadata": {"annotations": {"serving.ballast.dev/restarted-at": str(datetime.now(UTC))}}}
        kube.merge("inferenceservices", NAME, restarted, NAMESPACE)

        def replaced() -> bool:
            return len(ready_uids(kube) - before) == 2

        wait_for("both pods to be replaced", replaced, ROLLOUT_TIMEOUT_S)
        flows(found)
    assert found.failures == []


def test_no_request_fails_while_a_node_is_drained_and_back(
    installed: InstalledNode, kube: Kube, address: str, second_node: Node
) -> None:
    wait_for("both replicas", lambda: len(ready_uids(kube)) == 2, ROLLOUT_TIMEOUT_S)
    (leaving,) = (pod for pod in engine_pods(kube, NAME) if pod["spec"]["nodeName"] == second_node.name)
    with traffic(address) as found:
        flows(found)
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        installed.kubectl("drain", second_node.name, *words)
        assert leaving["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME)}
        flows(found)
        installed.kubectl("uncordon", second_node.name)
        wait_for("both replicas", lambda: len(ready_uids(kube)) == 2, ROLLOUT_TIMEOUT_S)
        flows(found)
    assert found.failures == []
