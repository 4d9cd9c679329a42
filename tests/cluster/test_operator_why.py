"""`ballast-operator why` on a real control plane."""

from __future__ import annotations

import subprocess
import sys

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, wait_condition, wait_ready


def why(cluster: Cluster, namespace: str, name: str) -> subprocess.CompletedProcess[str]:
    config = cluster.control_plane.client_config("why", "system:masters")
    return subprocess.run(
        [sys.executable, "-m", "ballast_operator", "why", name, "-n", namespace],
        env={"KUBECONFIG": str(config), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_screen_explains_why_a_service_is_not_ready(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    kube.apply("inferenceservices", service("good"), namespace)
    kube.apply("inferenceservices", service("lost", scheduling={"nodeSelector": {"no": "such"}}), namespace)
    wait_ready(kube, namespace, "good")
    wait_condition(kube, namespace, "lost", "Ready", "False", "Unschedulable")
    good, lost, none = (why(cluster, namespace, name) for name in ("good", "lost", "none"))
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.startswith(f"{namespace}/good: ready, 1 of 1 replicas answer\n")
    assert lost.returncode == 1, lost.stdout + lost.stderr
    lines = lost.stdout.splitlines()
    assert lines[0] == f"{namespace}/lost: not ready, 0 of 1 replicas answer"
    assert lines[1].startswith("Unschedulable: ")
    assert "OPERATOR" not in lines
    (pod,) = [line for line in lines if line.startswith("  lost-0 ")]
    assert "no node fits: 0/" in pod
    assert [line for line in lines[lines.index("EVENTS") :] if "FailedScheduling" in line]
    assert len(lines) <= 40
    assert (none.returncode, none.stdout) == (2, "")
    assert f"there is no InferenceService none in namespace {namespace}" in none.stderr


def test_a_stopped_operator_is_reported(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    lease = kube.get("leases", "ballast-operator", "ballast-system")
    operator.stop()
    try:
        spec = {**lease["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}
        kube.merge("leases", "ballast-operator", {"spec": spec}, "ballast-system")
        kube.apply("inferenceservices", service("waits"), namespace)
        found = why(cluster, namespace, "waits")
        assert found.returncode == 1
        assert found.stdout.startswith(f"{namespace}/waits: no operator has processed it yet\n")
        assert "the operator of Lease ballast-system/ballast-operator does not run" in found.stdout
    finally:
        operator.start()
        operator.wait_leading()
    wait_ready(kube, namespace, "waits")
