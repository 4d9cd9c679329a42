"""The chart's roles grant exactly the permissions that the operator uses, according to the API server's audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.cluster.audit import AuditLog
from devkit.cluster.chart import ACCOUNT, RELEASE, operator_of
from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import HTTP_ROUTE, INFERENCE_POOL, NODE_RESOURCE_TOPOLOGY, POD_MONITOR, PROMETHEUS_RULE
from devkit.cluster.helm import CHART, Helm
from devkit.cluster.kube import Kube
from devkit.cluster.service.caching import finish, model, model_cache, wait_cache
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.pulling import make_claim, pulled, pulling_pod, set_status, terminated
from devkit.cluster.service.specs import service, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

Permission = tuple[str, str]
"""Resource and verb."""

APPLY_CREATES = "server-side apply of what is not there is allowed by create, and logged as patch"
BY_CHANCE: dict[Permission, str] = {
    ("pods", "get"): "asked of a pod whose name was taken between the list of pods and its creation",
    ("nodes", "get"): "asked of the node of a pod that is not ready, which may report no more",
}
"""Permissions for events that depend on timing and may not occur in this test."""
EXPLAINED: dict[Permission, str] = {
    ("inferenceservices/finalizers", "update"): "asked of owners in clusters with OwnerReferencesPermissionEnforcement",
    **{
        (resource, "create"): APPLY_CREATES
        for resource in (
            *(
                "services",
                "configmaps",
                "poddisruptionbudgets",
                "networkpolicies",
                "podmonitors",
                "inferencepools",
                "httproutes",
                "controllerrevisions",
            ),
        )
    },
    **{
        (resource, "delete"): "a child of a name that a newer operator no longer gives it is deleted by the same sweep"
        for resource in ("services", "poddisruptionbudgets", "podmonitors")
    },
    **{
        (resource, "get"): "asked before a pod that serves is replaced by one with claims: test_rollouts.py has it"
        for resource in ("resourceclaims", "resourceclaimtemplates")
    },
    ("controllerrevisions", "delete"): "an old revision, or one whose spec came back: test_rollouts.py has it",
}


ROUTE = {"gateways": [{"name": "inference"}]}


@pytest.fixture
def helm(cluster: Cluster, tmp_path: Path) -> Helm:
    return Helm(tmp_path, cluster.control_plane.kubeconfig)


@pytest.fixture(autouse=True)
def kinds(cluster: Cluster) -> Iterator[None]:
    with cluster.kinds(POD_MONITOR, PROMETHEUS_RULE, NODE_RESOURCE_TOPOLOGY, INFERENCE_POOL, HTTP_ROUTE):
        yield


def granted(kube: Kube, namespace: str) -> set[Permission]:
    roles = [kube.get("clusterroles", f"{namespace}:{ACCOUNT}"), *kube.list("roles", namespace)]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def requested(audit: AuditLog, namespace: str) -> set[Permission]:
    """Permissions used by the operator's account; asserts that none was denied outside of terminating namespaces."""
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    calls = audit.new_calls(lambda call: call.user == user and call.namespace in ("", namespace))
    assert [call for call in calls if call.code in (401, 403)] == []
    return {(call.resource, call.verb) for call in calls}


def live_a_life(kube: Kube, namespace: str) -> None:
    """Create, repair and remove children; replace and delete pods."""
    endpoint = {"networkPolicy": {}, "inferencePool": {"pickerName": "picker"}, "route": ROUTE}
    first = service("whole", engine={"placementRules": {"inline": "a: 1"}}, endpoint=endpoint)
    kube.apply("inferenceservices", first, namespace)
    wait_ready(kube, namespace, "whole")
    optional = ("podmonitors", "inferencepools", "httproutes")
    for resource in ("services", "configmaps", "poddisruptionbudgets", "networkpolicies", *optional):
        (found,) = kube.list(resource, namespace, {"serving.ballast.dev/service": "whole"})
        kube.delete(resource, found["metadata"]["name"], namespace)
        uid, name = found["metadata"]["uid"], found["metadata"]["name"]
        wait_for(
            f"{resource} to be healed",
            lambda r=resource, n=name, u=uid: (
                (there := kube.find(r, n, namespace)) is not None and there["metadata"]["uid"] != u
            ),
        )
    kube.merge("pods", "whole-0", {"metadata": {"labels": None}}, namespace)
    wait_for("the pod's labels", lambda: kube.list("pods", namespace, {"serving.ballast.dev/service": "whole"}))
    kube.apply("inferenceservices", service("whole"), namespace)
    for resource in ("configmaps", "networkpolicies", "inferencepools", "httproutes"):
        labels = {"serving.ballast.dev/service": "whole"}
        wait_for(f"no {resource}", lambda r=resource, labels=labels: not kube.list(r, namespace, labels))
    wait_ready(kube, namespace, "whole")


def pull_a_model(kube: Kube, namespace: str) -> None:
    """Create, complete and clean up a pull Job."""
    make_claim(kube, namespace)
    kube.apply("inferenceservices", pulled("hub"), namespace)
    set_status(kube, pulling_pod(kube, namespace), phase="Succeeded", state=terminated(0, "Pulled", "org/tiny at 1234"))
    wait_ready(kube, namespace, "hub")
    kube.delete("inferenceservices", "hub", namespace)


def keep_a_model(kube: Kube, namespace: str) -> None:
    """Fill and delete a ModelCache on the existing claim."""
    kube.create("modelcaches", model_cache("kept", model("tiny"), storage={"pvc": {"claimName": "models"}}), namespace)
    finish(kube, namespace, "tiny", "models")
    wait_cache(kube, namespace, "kept", "True", "Filled")
    kube.delete("modelcaches", "kept", namespace)
    finish(kube, namespace, "tiny", "models", removes=True)
    wait_for("the cache to be deleted", lambda: kube.find("modelcaches", "kept", namespace) is None)


def be_refused(kube: Kube, namespace: str) -> None:
    """Create pods that a node rejects; they are retried and deleted."""
    kube.apply("inferenceservices", service("refused", "rejected"), namespace)
    wait_condition(kube, namespace, "refused", "Ready", "False", "TopologyAffinityError")
    wait_for(
        "another attempt", lambda: len(kube.list("pods", namespace, {"serving.ballast.dev/service": "refused"})) > 1
    )
    kube.delete("inferenceservices", "refused", namespace)


def test_every_permission_is_needed_and_none_is_missing(
    cluster: Cluster, kube: Kube, helm: Helm, namespace: str, answers: PodAnswers
) -> None:
    where = ("--namespace", namespace, "--take-ownership", "--wait")
    helm("install", RELEASE, CHART, *where)
    try:
        audit = cluster.audit()
        with operator_of(cluster, namespace, answers, "audited"):
            live_a_life(kube, namespace)
            pull_a_model(kube, namespace)
            keep_a_model(kube, namespace)
            be_refused(kube, namespace)
        given = granted(kube, namespace)
        assert BY_CHANCE.keys() <= given
        assert given - requested(audit, namespace) - BY_CHANCE.keys() == EXPLAINED.keys()
        assert kube.list("podmonitors", namespace, {"app.kubernetes.io/name": "ballast-operator"})
        assert kube.list("prometheusrules", namespace)
    finally:
        helm("uninstall", RELEASE, "--namespace", namespace)


def test_within_one_namespace_no_permission_is_missing(
    cluster: Cluster, kube: Kube, helm: Helm, namespace: str, answers: PodAnswers
) -> None:
    where = ("--namespace", namespace, "--take-ownership", "--wait")
    helm("install", RELEASE, CHART, *where, "--set", "rbac.scope=Namespace")
    elsewhere = cluster.make_namespace(f"x-{namespace}"[:63])
    try:
        kube.create("inferenceservices", service("unseen"), elsewhere)
        audit = cluster.audit()
        with operator_of(cluster, namespace, answers, "scoped"):
            live_a_life(kube, namespace)
        requested(audit, namespace)
        assert "status" not in kube.get("inferenceservices", "unseen", elsewhere)
    finally:
        helm("uninstall", RELEASE, "--namespace", namespace)
        kube.delete("namespaces", elsewhere)
