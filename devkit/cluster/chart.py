"""The chart's operator on a cluster with simulated nodes: runs the Deployment's own command on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from devkit.cluster.cluster import Cluster
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.pod_answers import PodAnswers

RELEASE = "ballast"
ACCOUNT = "ballast-operator"
"""Name of the Deployment and of its service account, in a release of that name."""


@contextmanager
def operator_of(cluster: Cluster, namespace: str, answers: PodAnswers, name: str) -> Iterator[OperatorProcess]:
    """An operator that leads, with the release's own account and permissions; it must exit cleanly."""
    (container,) = cluster.kube.get("deployments", ACCOUNT, namespace)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["ballast-operator"]
    command, *arguments = container["args"]
    assert command == "run"
    overrides = ("--resync-seconds=5", "--log-format=text")
    process = OperatorProcess(cluster, name, answers.url, *arguments, *overrides, account=ACCOUNT, namespace=namespace)
    process.start()
    try:
        process.wait_leading()
        yield process
    finally:
        process.stop()
    assert process.exit_code == 0, process.log_tail()
