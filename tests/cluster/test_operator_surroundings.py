"""The operator's environment: kinds that are added and removed, published topology, injected containers."""

from __future__ import annotations

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import INFERENCE_POOL, NODE_RESOURCE_TOPOLOGY, POD_MONITOR
from devkit.cluster.faults.injector import SIDECAR, Injector
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")


def zone(cpus: int) -> Object:
    free = {"cpu": str(cpus), "memory": "8Gi"}
    resources = [{"name": name, "capacity": "8Gi", "allocatable": "8Gi", "available": n} for name, n in free.items()]
    return {"name": "node-0", "type": "Node", "resources": resources}


def test_pod_monitors_follow_their_definition(cluster: Cluster, kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("watched"), namespace)
    wait_ready(kube, namespace, "watched")
    with cluster.kinds(POD_MONITOR):
        made = wait_for("its PodMonitor", lambda: kube.find("podmonitors", "watched", namespace))
        assert made["metadata"]["ownerReferences"][0]["name"] == "watched"
        assert made["spec"]["podMetricsEndpoints"][0]["port"] == "admin"
    kube.merge("inferenceservices", "watched", {"spec": {"engine": {"chunkSize": 128}}}, namespace)
    wait_ready(kube, namespace, "watched")


def test_a_pool_is_created_once_its_crd_exists_and_deleted_when_not_requested(
    cluster: Cluster, kube: Kube, namespace: str
) -> None:
    pool = {"endpoint": {"inferencePool": {"pickerName": "picker"}}}
    kube.apply("inferenceservices", service("pooled", **pool), namespace)
    wait_ready(kube, namespace, "pooled")
    blocked = wait_condition(kube, namespace, "pooled", "Progressing", "False", "Blocked")
    assert "needs the kind InferencePool" in blocked["message"]
    (before,) = kube.list("pods", namespace)
    with cluster.kinds(INFERENCE_POOL):
        made = wait_for("its pool", lambda: kube.find("inferencepools", "pooled", namespace))
        selected = kube.list("pods", namespace, made["spec"]["selector"]["matchLabels"])
        assert [pod["metadata"]["uid"] for pod in selected] == [before["metadata"]["uid"]]
        wait_condition(kube, namespace, "pooled", "Progressing", "False", "UpToDate")
        kube.merge("inferencepools", "pooled", {"spec": {"targetPorts": [{"number": 1}]}}, namespace)
        wait_for(
            "the pool to be healed",
            lambda: kube.get("inferencepools", "pooled", namespace)["spec"]["targetPorts"] == [{"number": 10002}],
        )
        kube.merge("inferenceservices", "pooled", {"spec": {"endpoint": {"inferencePool": None}}}, namespace)
        wait_for("the pool to be deleted", lambda: kube.find("inferencepools", "pooled", namespace) is None)
    (after,) = kube.list("pods", namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def admitted(policy: Object, port: str, pod: Object, namespace: Object) -> bool:
    """Whether the namespace's policy allows a pod to connect to this port, given the labels of the pod and its
    namespace.

    A peer without a namespace selector means the policy's own namespace, which has no labels here.
    """

    def matches(peer: Object) -> bool:
        namespaces = peer.get("namespaceSelector", {"matchLabels": {"own": "own"}}).get("matchLabels", {})
        pods = peer.get("podSelector", {}).get("matchLabels", {})
        return bool(namespaces.items() <= namespace.items() and pods.items() <= pod.items())

    rules = [rule for rule in policy["spec"]["ingress"] if port in {it["port"] for it in rule["ports"]}]
    return any(matches(peer) for rule in rules for peer in rule["from"])


def test_a_network_policy_admits_the_admin_port_clients_of_the_same_spec(
    cluster: Cluster, kube: Kube, namespace: str
) -> None:
    prometheus, own, other = {"app.kubernetes.io/name": "prometheus"}, {"own": "own"}, {"team": "other"}
    endpoint = {"networkPolicy": {}, "inferencePool": {"pickerName": "picker", "pickerLabels": {"app": "picker"}}}
    kube.apply("inferenceservices", service("closed", endpoint=endpoint), namespace)
    wait_ready(kube, namespace, "closed")

    def lets_in(pod: Object, where: Object, port: str = "admin") -> bool:
        return admitted(kube.get("networkpolicies", "closed", namespace), port, pod, where)

    wait_for("the policy to admit neither without their kinds", lambda: not lets_in(prometheus, other))
    wait_for("the policy to admit neither without their kinds", lambda: not lets_in({"app": "picker"}, own))
    with cluster.kinds(POD_MONITOR), cluster.kinds(INFERENCE_POOL):
        wait_for("Prometheus to be admitted", lambda: lets_in(prometheus, other))
        wait_for("the picker to be admitted", lambda: lets_in({"app": "picker"}, own))
        assert not lets_in({"app": "picker"}, other)
        assert not lets_in({"app": "shell"}, other)
        assert not lets_in(prometheus, other, "http")
        monitoring = [{"namespaceLabels": {"team": "metrics"}}]
        kube.merge(
            "inferenceservices",
            "closed",
            {"spec": {"endpoint": {"networkPolicy": {"monitoring": monitoring}}}},
            namespace,
        )
        wait_for("another scraper to be admitted", lambda: lets_in({}, {"team": "metrics"}))
        assert not lets_in(prometheus, other)
        assert lets_in({"app": "picker"}, own)


def test_a_pod_that_fits_no_numa_node_is_not_started_if_capacity_is_known(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str
) -> None:
    with cluster.kinds(NODE_RESOURCE_TOPOLOGY):
        head = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology"}
        topology = {**head, "metadata": {"name": "gpu-0"}, "zones": [zone(cpus=3)]}
        kube.create("noderesourcetopologies", topology)
        operator.wait_looked()  # so that it knows the kind
        resources = {"cpus": 4, "memory": "1Gi", "gpus": 0}
        kube.apply(
            "inferenceservices", service("wide", resources=resources, numa={"enforcement": "Require"}), namespace
        )
        found = wait_condition(kube, namespace, "wide", "Scheduled", "False", "NoNUMANodeFits")
        assert "lacks cpu 3 of 4" in found["message"]
        assert kube.list("pods", namespace) == []
        kube.merge("noderesourcetopologies", "gpu-0", {"zones": [zone(cpus=4)]})
        kube.merge(
            "inferenceservices", "wide", {"metadata": {"annotations": {"test.ballast.dev/look": "now"}}}, namespace
        )
        wait_for("a pod", lambda: kube.list("pods", namespace))


def test_an_injected_container_is_reported(cluster: Cluster, kube: Kube, namespace: str) -> None:
    with Injector(cluster.control_plane, namespace):
        kube.apply("inferenceservices", service("meshed", numa={"enforcement": "Require"}), namespace)
        found = wait_condition(kube, namespace, "meshed", "Ready", "False", "SidecarInjected")
        assert SIDECAR["name"] in found["message"]
    (pod,) = kube.list("pods", namespace)
    assert pod["status"]["qosClass"] == "Burstable"


def test_no_warning_is_logged_about_events_in_a_namespace_that_ends(
    cluster: Cluster, kube: Kube, operator: OperatorProcess
) -> None:
    name = cluster.make_namespace("ends-with-a-service")
    held = service("held", model={"source": {"hostPath": {"path": "/etc"}}})
    held["metadata"]["finalizers"] = ["example.org/held"]
    kube.create("inferenceservices", held, name)
    wait_condition(kube, name, "held", "Ready", "False", "NotAllowed")
    kube.delete("namespaces", name)
    try:
        wait_condition(kube, name, "held", "Ready", "False", "Terminating")
        operator.wait_looked()
        log = operator.log_path.read_text()
        assert [line for line in log.splitlines() if "an event could not be written" in line and name in line] == []
    finally:
        kube.merge("inferenceservices", "held", {"metadata": {"finalizers": None}}, name)
