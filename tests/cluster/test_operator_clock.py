"""An operator whose clock differs from the API server's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_condition
from devkit.cluster.waiting import wait_for

HOUR_S = 3600
WATCHED_S = 4
"""Shorter than the first retry delay, and long enough for tens of pods."""


@pytest.fixture
def skewed(cluster: Cluster, answers: PodAnswers, request: pytest.FixtureRequest) -> Iterator[OperatorProcess]:
    """A leading operator whose clock is wrong by the parameter's seconds."""
    install(cluster)
    name = f"skewed{request.param}"
    operator = OperatorProcess(cluster, name, answers.url, "--resync-seconds", "5", "--lease-name", name)
    operator.argv[operator.argv.index("ballast_operator")] = "devkit.cluster.service.skewed"
    operator.env = {**(operator.env or {}), "CLOCK_SKEW_S": str(request.param)}
    operator.start()
    operator.wait_leading()
    yield operator
    operator.stop()


def names(kube: Kube, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in kube.list("pods", namespace)]


@pytest.mark.parametrize("skewed", [HOUR_S], indirect=True)
def test_ahead_of_the_api_server_a_refused_replica_is_no_storm(
    skewed: OperatorProcess, kube: Kube, namespace: str
) -> None:
    kube.apply("inferenceservices", service("ahead", "rejected"), namespace)
    wait_condition(kube, namespace, "ahead", "Ready", "False", "TopologyAffinityError")
    time.sleep(WATCHED_S)
    assert names(kube, namespace) == ["ahead-0"]


@pytest.mark.parametrize("skewed", [-HOUR_S], indirect=True)
def test_with_a_clock_behind_the_api_server_a_rejected_replica_is_retried_in_time(
    skewed: OperatorProcess, kube: Kube, namespace: str
) -> None:
    kube.apply("inferenceservices", service("behind", "rejected"), namespace)
    wait_condition(kube, namespace, "behind", "Ready", "False", "TopologyAffinityError")
    wait_for("another attempt", lambda: "behind-0-r1" in names(kube, namespace))
