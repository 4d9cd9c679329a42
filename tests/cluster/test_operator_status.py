"""The status of services whose spec is rejected, that fit on no node, or that have a load balancer."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from devkit.cluster.binaries import program
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube
from devkit.cluster.service.specs import condition, service, status_of, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

NOT_ALLOWED = {"source": {"hostPath": {"path": "/etc"}}}


def test_a_serving_pod_keeps_the_service_available_while_a_spec_is_rejected(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("kept"), namespace)
    wait_ready(kube, namespace, "kept")
    kube.merge(
        "inferenceservices",
        "kept",
        {"spec": {"model": {"source": {"builtin": None, **NOT_ALLOWED["source"]}}}},
        namespace,
    )
    wait_condition(kube, namespace, "kept", "Ready", "False", "NotAllowed")
    assert condition(kube, namespace, "kept", "Available")["status"] == "True"
    assert status_of(kube, namespace, "kept")["readyReplicas"] == 1
    [pod] = kube.list("pods", namespace)
    kube.delete("pods", pod["metadata"]["name"], namespace)
    wait_condition(kube, namespace, "kept", "Available", "False", "MinimumReplicasUnavailable")
    wait_for("no ready replica", lambda: not status_of(kube, namespace, "kept").get("readyReplicas"))


def test_a_rejected_spec_that_never_ran_is_not_available(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("never", model=NOT_ALLOWED), namespace)
    wait_condition(kube, namespace, "never", "Ready", "False", "NotAllowed")
    wait_condition(kube, namespace, "never", "Available", "False", "MinimumReplicasUnavailable")


def test_a_pod_without_a_node_is_not_reported_as_loading(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("nowhere", "no-such-node"), namespace)
    wait_condition(kube, namespace, "nowhere", "Scheduled", "False", "Unschedulable")
    wait_condition(kube, namespace, "nowhere", "ModelLoaded", "False", "Unschedulable")


@pytest.mark.parametrize(
    ("point", "url"),
    [
        ({"ip": "192.0.2.7"}, "http://192.0.2.7:10002/v1"),
        ({"hostname": "lb.example.org"}, "http://lb.example.org:10002/v1"),
    ],
)
def test_a_load_balancer_s_service_is_ready_once_it_has_an_address(
    kube: Kube, namespace: str, point: dict[str, Any], url: str
) -> None:
    kube.apply("inferenceservices", service("outside", endpoint={"service": {"type": "LoadBalancer"}}), namespace)
    wait_condition(kube, namespace, "outside", "Ready", "False", "AddressPending")
    assert condition(kube, namespace, "outside", "Available")["status"] == "True"
    assert condition(kube, namespace, "outside", "Progressing")["status"] == "True"
    assert "externalURL" not in status_of(kube, namespace, "outside")
    kube.merge("services", "outside", {"status": {"loadBalancer": {"ingress": [point]}}}, namespace, "status")
    wait_ready(kube, namespace, "outside")
    assert status_of(kube, namespace, "outside")["externalURL"] == url
    kube.merge("services", "outside", {"status": {"loadBalancer": None}}, namespace, "status")
    wait_condition(kube, namespace, "outside", "Ready", "False", "AddressPending")


def test_kubectl_shows_images_as_words(cluster: Cluster, kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("shown"), namespace)
    wait_ready(kube, namespace, "shown")

    def row() -> str:
        command = [str(program("kubectl")), "get", "bisvc", "shown", "--output", "wide", "--no-headers"]
        kubeconfig = str(cluster.control_plane.kubeconfig)
        command += ["--namespace", namespace, "--kubeconfig", kubeconfig]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "made.up/runtime:1" in wait_for("an image", row).split()
