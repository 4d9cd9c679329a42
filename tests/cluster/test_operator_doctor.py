"""The doctor, before and after the operator is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ballast_operator.commands.doctor import judge_kubelet
from devkit.cluster.cluster import Cluster
from devkit.cluster.helm import CHART, Helm
from devkit.cluster.service.api_versions import KINDS, define, of_the_release_before, of_this_release
from devkit.cluster.service.operator import CRDS, install


def doctor(cluster: Cluster, *flags: str) -> subprocess.CompletedProcess[str]:
    config = cluster.control_plane.client_config("doctor", "system:masters")
    return subprocess.run(
        [Path(sys.executable).with_name("ballast-operator"), "doctor", *flags],
        env={"KUBECONFIG": str(config), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_doctor_reports_missing_parts_until_they_are_added(cluster: Cluster) -> None:
    install(cluster)
    healthy = doctor(cluster)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    for message in (
        "ok    inferenceservices.serving.ballast.dev has the version of this operator",
        "ok    modelcaches.serving.ballast.dev has the version of this operator",
        "note  PodMonitor is not installed",
        "ok    system:serviceaccount:ballast-system:ballast-operator has all",
        "note  node gpu-0: its kubelet's policies cannot be read",
    ):
        assert message in healthy.stdout, healthy.stdout
    rules = cluster.kube.get("clusterroles", "ballast-operator")["rules"]
    cluster.kube.merge(
        "clusterroles", "ballast-operator", {"rules": [rule for rule in rules if rule["apiGroups"] != [""]]}
    )
    ill = doctor(cluster)
    cluster.kube.merge("clusterroles", "ballast-operator", {"rules": rules})
    assert ill.returncode == 1
    assert "FAIL  system:serviceaccount:ballast-system:ballast-operator lacks permissions: get pods" in ill.stdout


def test_a_crd_without_v1beta1_is_reported_as_another_version(cluster: Cluster) -> None:
    install(cluster)
    define(cluster.kube, of_the_release_before())
    try:
        older = doctor(cluster)
        assert older.returncode == 1
        for name in KINDS:
            assert f"FAIL  {name}.serving.ballast.dev has another version than this operator" in older.stdout
    finally:
        define(cluster.kube, of_this_release())


def test_a_namespaced_installation_is_checked_for_its_namespaces(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.install(*CRDS)
    helm = Helm(tmp_path, cluster.control_plane.kubeconfig)
    values = ("--set", "rbac.scope=Namespace,crds.install=false")
    helm("install", "scoped", CHART, "--namespace", namespace, *values, "--set", "fullnameOverride=ballast-operator")
    try:
        of_it = ("--operator-namespace", namespace)
        everywhere = doctor(cluster, *of_it)
        assert everywhere.returncode == 1
        assert f"FAIL  system:serviceaccount:{namespace}:ballast-operator lacks permissions: " in everywhere.stdout
        there = doctor(cluster, *of_it, "--namespace", namespace)
        assert there.returncode == 0, there.stdout + there.stderr
        assert f"ok    system:serviceaccount:{namespace}:ballast-operator has all" in there.stdout
        beyond = doctor(cluster, *of_it, "--namespace", namespace, "--namespace", "kube-public")
        assert beyond.returncode == 1
        assert "get pods in kube-public" in beyond.stdout
        assert f" in {namespace}" not in beyond.stdout
    finally:
        helm("uninstall", "scoped", "--namespace", namespace)


def test_the_doctor_detects_whether_a_kubelet_pins() -> None:
    pins = {
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
    }
    assert judge_kubelet("n", pins).verdict == "ok"
    for key, message in (
        ("cpuManagerPolicy", "exclusive CPUs"),
        ("memoryManagerPolicy", "keeps memory"),
        ("topologyManagerPolicy", "of a pod together"),
    ):
        found = judge_kubelet("n", {name: value for name, value in pins.items() if name != key})
        assert found.verdict == "note"
        assert message in found.text
