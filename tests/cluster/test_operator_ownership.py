"""Foreign objects, and own objects with foreign owners: they are reported, and adopted if that is allowed."""

from __future__ import annotations

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import KSERVE
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, status_of, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

OTHERS = "example.org/others"


def serving(kube: Kube, namespace: str, name: str, **spec: object) -> None:
    kube.apply("inferenceservices", service(name, **spec), namespace)
    wait_ready(kube, namespace, name)


def pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    return kube.list("pods", namespace, {"serving.ballast.dev/service": name})


def test_a_foreign_owner_is_reported_with_its_kind(cluster: Cluster, kube: Kube, namespace: str) -> None:
    """Another project uses the same name for its kind."""
    group, version = KSERVE["spec"]["group"], KSERVE["spec"]["versions"][0]["name"]
    theirs = {"apiVersion": f"{group}/{version}", "kind": "InferenceService", "metadata": {"name": "taken"}, "spec": {}}
    with cluster.kinds(KSERVE):
        path = f"/apis/{group}/{version}/namespaces/{namespace}/inferenceservices"
        owner = wait_for("their kind", lambda: kube.post_to(path, theirs))
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": "taken", "uid": owner["metadata"]["uid"], "controller": True}
        foreign = {"metadata": {"name": "taken", "ownerReferences": [reference]}, "spec": {"ports": [{"port": 1}]}}
        kube.create("services", foreign, namespace)
        kube.apply("inferenceservices", service("taken"), namespace)
        found = wait_condition(kube, namespace, "taken", "Ready", "False", "ForeignObject")
        assert f"it belongs to InferenceService taken of {group}; the operator does not change it" in found["message"]
        assert "the operator waits" not in found["message"]


def test_orphaned_children_are_adopted_by_the_next_service_of_that_name(kube: Kube, namespace: str) -> None:
    def uids() -> dict[str, str]:
        resources = ("pods", "services", "poddisruptionbudgets")
        labels = {"serving.ballast.dev/service": "again"}
        return {resource: kube.list(resource, namespace, labels)[0]["metadata"]["uid"] for resource in resources}

    serving(kube, namespace, "again")
    before = uids()
    kube.delete("inferenceservices", "again", namespace, propagationPolicy="Orphan")
    wait_for("it to be gone", lambda: kube.find("inferenceservices", "again", namespace) is None)
    wait_for(
        "its pod to have no owner",
        lambda: not kube.get("pods", "again-0", namespace)["metadata"].get("ownerReferences"),
    )
    serving(kube, namespace, "again")
    assert uids() == before, "nothing restarted"
    owner = kube.get("inferenceservices", "again", namespace)["metadata"]["uid"]
    for resource in ("pods", "services", "poddisruptionbudgets"):
        (body,) = kube.list(resource, namespace, {"serving.ballast.dev/owner-uid": owner})
        assert [reference["uid"] for reference in body["metadata"]["ownerReferences"]] == [owner]
    kube.delete("inferenceservices", "again", namespace)
    wait_for("no pods", lambda: not pods(kube, namespace, "again"))


def test_a_child_blocked_by_a_foreign_finalizer_is_reported(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "held")
    before = kube.get("services", "held", namespace)["metadata"]["uid"]
    kube.merge("services", "held", {"metadata": {"finalizers": [OTHERS]}}, namespace)
    kube.delete("services", "held", namespace)
    found = wait_condition(kube, namespace, "held", "Progressing", "False", "Blocked")
    assert f"Service held is being deleted and waits for {OTHERS}" in found["message"]
    kube.merge("services", "held", {"metadata": {"finalizers": None}}, namespace)
    wait_for(
        "another Service",
        lambda: (found := kube.find("services", "held", namespace)) and found["metadata"]["uid"] != before,
    )
    wait_ready(kube, namespace, "held")


def test_a_pod_blocked_by_a_foreign_finalizer_is_reported(kube: Kube, namespace: str) -> None:
    """It never ran: no node has the resources that it requests."""
    kube.apply("inferenceservices", service("stuck", "nowhere"), namespace)
    wait_condition(kube, namespace, "stuck", "Ready", "False", "Unschedulable")
    kube.merge("pods", "stuck-0", {"metadata": {"finalizers": [OTHERS]}}, namespace)
    kube.apply("inferenceservices", service("stuck"), namespace)
    found = wait_condition(kube, namespace, "stuck", "Progressing", "True", "Draining")
    assert f"stuck-0 waits for {OTHERS}" in found["message"]
    kube.merge("pods", "stuck-0", {"metadata": {"finalizers": None}}, namespace)
    wait_ready(kube, namespace, "stuck")


def test_a_service_blocked_by_a_foreign_finalizer_reports_that_it_is_not_reconciled(
    kube: Kube, namespace: str, operator: OperatorProcess
) -> None:
    serving(kube, namespace, "ending")
    kube.merge("inferenceservices", "ending", {"metadata": {"finalizers": [OTHERS]}}, namespace)
    kube.delete("inferenceservices", "ending", namespace)
    found = wait_condition(kube, namespace, "ending", "Ready", "False", "Terminating")
    assert f"waits for {OTHERS}" in found["message"]
    operator.wait_looked()
    assert pods(kube, namespace, "ending"), "the garbage collector deletes it after the service is gone"
    assert status_of(kube, namespace, "ending")["replicas"] == 1
    kube.merge("inferenceservices", "ending", {"metadata": {"finalizers": None}}, namespace)
    wait_for("no pods", lambda: not pods(kube, namespace, "ending"))
