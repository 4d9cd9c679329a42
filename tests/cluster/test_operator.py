"""A service's life cycle with a real control plane and simulated nodes and pods."""

from __future__ import annotations

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.pod_answers import PINNED, PodAnswers
from devkit.cluster.service.specs import condition, service, status_of, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

SERVICE = "serving.ballast.dev/service"
REPLICA = "serving.ballast.dev/replica"
SPEC_HASH = "serving.ballast.dev/spec-hash"


def pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    return kube.list("pods", namespace, {SERVICE: name})


def uids(found: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in found}


def marks(pod: Object) -> dict[str, str]:
    """Labels and annotations."""
    return {**pod["metadata"]["labels"], **pod["metadata"].get("annotations", {})}


def apply(kube: Kube, namespace: str, body: Object) -> None:
    kube.apply("inferenceservices", body, namespace)


def events(kube: Kube, namespace: str, name: str) -> dict[str, Object]:
    """The operator's events for a service, by reason."""
    target = ("InferenceService", name)
    found = kube.list("events", namespace)
    return {e["reason"]: e for e in found if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == target}


def test_a_service_becomes_ready_and_reports_where_it_runs(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("tiny", engine={"maxNewTokens": 1000, "cacheLens": 4096}))
    wait_ready(kube, namespace, "tiny")
    wait_condition(kube, namespace, "tiny", "NUMAPinned", "True", "CPUsAndMemoryAligned")
    status = status_of(kube, namespace, "tiny")
    del status["conditions"]
    (pod,) = pods(kube, namespace, "tiny")
    assert status == {
        "observedGeneration": 1,
        "specHash": pod["metadata"]["annotations"]["serving.ballast.dev/spec-hash"],
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "images": ["made.up/runtime:1"],
        "image": "made.up/runtime:1",
        "device": {"asked": "cpu"},
        "selector": f"app.kubernetes.io/managed-by=ballast-operator,{SERVICE}=tiny",
        "url": f"http://tiny.{namespace}.svc:10002/v1",
        "nodes": "gpu-0",
        "effective": {
            "kvCacheTokens": 4096,
            "guaranteedConcurrency": 4,
            "guaranteedPromptTokens": 24,
            "maxNewTokens": 1000,
        },
        "placement": [{"pod": "tiny-0", "node": "gpu-0", "cpus": "1", "memoryNodes": "0", "localPercent": 100}],
    }
    assert pod["status"]["qosClass"] == "Guaranteed"
    wait_for("its events", lambda: events(kube, namespace, "tiny").keys() == {"Serving", "CPUsAndMemoryAligned"})


def test_user_edits_and_deletions_of_children_are_healed(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("healed", endpoint={"networkPolicy": {}}))
    wait_ready(kube, namespace, "healed")
    edits = {
        "services": {"spec": {"selector": {SERVICE: "other"}}},
        "poddisruptionbudgets": {"spec": {"minAvailable": 7}, "metadata": {"ownerReferences": None}},
        "networkpolicies": {"spec": {"ingress": [{}]}, "metadata": {"labels": None}},
    }
    before = {resource: kube.get(resource, "healed", namespace) for resource in edits}
    for resource, patch in edits.items():
        kube.merge(resource, "healed", patch, namespace)
    for resource, body in before.items():

        def healed(resource: str = resource, body: Object = body) -> bool:
            found = kube.get(resource, "healed", namespace)
            same = ("labels", "ownerReferences")
            return bool(found["spec"] == body["spec"]) and all(
                found["metadata"].get(key) == body["metadata"][key] for key in same
            )

        wait_for(f"{resource} to be healed", healed)
    for resource, body in before.items():
        kube.delete(resource, "healed", namespace)
        gone = body["metadata"]["uid"]
        wait_for(
            f"{resource} to be there again",
            lambda resource=resource, gone=gone: (
                (found := kube.find(resource, "healed", namespace)) and found["metadata"]["uid"] != gone
            ),
        )


def test_a_pod_without_labels_is_recovered_and_a_deleted_pod_is_replaced(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("pods"))
    wait_ready(kube, namespace, "pods")
    (pod,) = pods(kube, namespace, "pods")
    pinned = {"containers": [{**pod["spec"]["containers"][0], "image": "mirror.example/runtime:1"}]}
    kube.merge("pods", "pods-0", {"metadata": {"labels": None}, "spec": pinned}, namespace)
    wait_for("its labels", lambda: uids(pods(kube, namespace, "pods")) == uids([pod]))
    (healed,) = pods(kube, namespace, "pods")
    assert healed["spec"]["containers"][0]["image"] == "mirror.example/runtime:1", (
        "restoring it would restart the model"
    )
    edited = {"labels": {REPLICA: "5"}, "annotations": {SPEC_HASH: None}}
    kube.merge("pods", "pods-0", {"metadata": edited}, namespace)
    kept = {REPLICA: "0", SPEC_HASH: pod["metadata"]["annotations"][SPEC_HASH]}
    wait_for("its replica and hash", lambda: kept.items() <= marks(kube.get("pods", "pods-0", namespace)).items())
    assert uids(pods(kube, namespace, "pods")) == uids([pod])
    kube.delete("pods", "pods-0", namespace)
    wait_for("another pod", lambda: (found := uids(pods(kube, namespace, "pods"))) and found != uids([pod]))
    wait_ready(kube, namespace, "pods")


def test_objects_of_other_owners_are_not_changed_but_reported(kube: Kube, namespace: str) -> None:
    foreign = {"metadata": {"name": "taken"}, "spec": {"ports": [{"port": 1}]}}
    before = kube.create("services", foreign, namespace)
    apply(kube, namespace, service("taken"))
    found = wait_condition(kube, namespace, "taken", "Ready", "False", "ForeignObject")
    assert "Service taken already exists" in found["message"]
    assert "no owner" in found["message"]
    assert pods(kube, namespace, "taken") == []
    assert (
        kube.get("services", "taken", namespace)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    )
    kube.delete("services", "taken", namespace)
    wait_ready(kube, namespace, "taken")


def test_a_spec_change_creates_the_new_pod_after_the_old_one_is_deleted(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("changed", podMetadata={"annotations": {"test.ballast.dev/lingers": "yes"}}))
    wait_ready(kube, namespace, "changed")
    (old,) = pods(kube, namespace, "changed")
    apply(kube, namespace, service("changed", engine={"cacheLens": 5000}))
    wait_condition(kube, namespace, "changed", "Progressing", "True", "Draining")
    wait_condition(kube, namespace, "changed", "Ready", "False")
    assert uids(pods(kube, namespace, "changed")) == uids([old])
    kube.merge("pods", "changed-0", {"metadata": {"annotations": {"test.ballast.dev/lingers": None}}}, namespace)
    wait_ready(kube, namespace, "changed")
    wait_for("a second event", lambda: events(kube, namespace, "changed")["Serving"]["count"] == 2)
    (new,) = pods(kube, namespace, "changed")
    assert uids([new]) != uids([old])
    arguments = new["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--cache_lens") + 1] == "5000"


def test_scaling_up_down_and_to_zero(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("scaled"))
    wait_ready(kube, namespace, "scaled")
    first = uids(pods(kube, namespace, "scaled"))
    for replicas in (3, 1):
        kube.merge("inferenceservices", "scaled", {"spec": {"replicas": replicas}}, namespace, "scale")
        wait_for(f"{replicas} pods", lambda replicas=replicas: len(pods(kube, namespace, "scaled")) == replicas)
        wait_ready(kube, namespace, "scaled")
        assert first <= uids(pods(kube, namespace, "scaled"))
    kube.merge("inferenceservices", "scaled", {"spec": {"replicas": 0}}, namespace, "scale")
    wait_condition(kube, namespace, "scaled", "Ready", "False", "ScaledToZero")
    wait_for("no pods", lambda: pods(kube, namespace, "scaled") == [])


def test_a_rejected_pod_is_reported_and_recreated_with_backoff(cluster: Cluster, kube: Kube, namespace: str) -> None:
    audit = cluster.audit()
    apply(kube, namespace, service("refused", "rejected", replicas=2))
    found = wait_condition(kube, namespace, "refused", "Ready", "False", "TopologyAffinityError")
    assert "node rejected rejected refused-" in found["message"]
    assert "1 CPUs, 1Gi of memory" in found["message"]
    wait_for("a warning", lambda: events(kube, namespace, "refused").get("TopologyAffinityError"))
    assert events(kube, namespace, "refused")["TopologyAffinityError"]["type"] == "Warning"
    wait_for(
        "another attempt",
        lambda: any(pod["metadata"]["name"].endswith("-r1") for pod in pods(kube, namespace, "refused")),
    )
    assert len(pods(kube, namespace, "refused")) <= 3
    created = [call for call in audit.new_writes() if (call.verb, call.resource) == ("create", "pods")]
    assert len([call for call in created if call.namespace == namespace]) == 3
    apply(kube, namespace, service("refused"))
    wait_ready(kube, namespace, "refused")
    (pod,) = pods(kube, namespace, "refused")
    assert pod["metadata"]["name"] == "refused-0-r2"
    kube.merge("pods", "refused-0-r2", {"metadata": {"labels": {SERVICE: None}}}, namespace)
    wait_for("its label", lambda: uids(pods(kube, namespace, "refused")) == uids([pod]))


@pytest.mark.parametrize(
    ("behaviour", "reason", "message"), [("loading", "Loading", "40 % loaded"), ("oom", "OutOfMemory", "SIGKILL")]
)
def test_a_pod_that_does_not_serve_reports_the_reason(
    kube: Kube, namespace: str, answers: PodAnswers, behaviour: str, reason: str, message: str
) -> None:
    before, answers.pages["/readyz"] = answers.pages["/readyz"], (503, {"status": "loading", "progress": 0.42})
    try:
        apply(kube, namespace, service("waits", behaviour))
        found = wait_condition(kube, namespace, "waits", "Ready", "False", reason)
        assert message in found["message"]
        assert condition(kube, namespace, "waits", "ModelLoaded")["reason"] == reason
    finally:
        answers.pages["/readyz"] = before


def test_a_service_is_ready_only_after_its_address_was_reached(kube: Kube, namespace: str, answers: PodAnswers) -> None:
    before, answers.pages["/readyz"] = answers.pages["/readyz"], None
    try:
        apply(kube, namespace, service("unreached"))
        wait_condition(kube, namespace, "unreached", "Ready", "False", "ServiceUnreachable")
    finally:
        answers.pages["/readyz"] = before
    wait_ready(kube, namespace, "unreached")
    address = kube.get("services", "unreached", namespace)["spec"]["clusterIP"]
    assert f"http://{address}:10002/readyz" in answers.requested


def test_a_service_without_its_required_pinning_is_not_ready(kube: Kube, namespace: str, answers: PodAnswers) -> None:
    before, answers.pages["/debug/numa"] = answers.pages["/debug/numa"], (200, {**PINNED, "cpus": "0-3"})
    try:
        apply(kube, namespace, service("loose", numa={"enforcement": "Require"}))
        found = wait_condition(kube, namespace, "loose", "Ready", "False", "SharedCPUPool")
        assert "cpuManagerPolicy static" in found["message"]
        apply(kube, namespace, service("loose", numa={"enforcement": "Prefer"}))
        wait_ready(kube, namespace, "loose")
        assert condition(kube, namespace, "loose", "NUMAPinned")["status"] == "False"
    finally:
        answers.pages["/debug/numa"] = before


def test_an_image_volume_is_mounted_or_reported_as_unsupported(kube: Kube, namespace: str) -> None:
    """By default, API servers support this kind of volume from 1.35 on."""
    source = {"reference": "models/tiny:1", "pullPolicy": "IfNotPresent"}
    apply(kube, namespace, service("image", model={"source": {"image": source}}))
    (pod,) = wait_for("its pod", lambda: pods(kube, namespace, "image"))
    mounted = [volume["image"] for volume in pod["spec"]["volumes"] if volume["name"] == "model"]
    if mounted:
        assert mounted == [source]
        wait_ready(kube, namespace, "image")
    else:
        wait_condition(kube, namespace, "image", "Ready", "False", "ImageVolumeUnsupported")


def test_an_api_server_rejection_is_reported(kube: Kube, namespace: str) -> None:
    kube.apply(
        "resourcequotas",
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}},
        namespace,
    )
    wait_for("the quota", lambda: kube.get("resourcequotas", "q", namespace).get("status", {}).get("hard"))
    apply(kube, namespace, service("quota"))
    found = wait_condition(kube, namespace, "quota", "Ready", "False", "ChildRefused")
    assert "exceeded quota" in found["message"]
    kube.delete("resourcequotas", "q", namespace)
    wait_ready(kube, namespace, "quota")


def test_a_drained_node_moves_the_pod(kube: Kube, namespace: str) -> None:
    apply(kube, namespace, service("drained"))
    wait_ready(kube, namespace, "drained")
    (pod,) = pods(kube, namespace, "drained")
    wait_for(
        "the budget", lambda: kube.get("poddisruptionbudgets", "drained", namespace)["status"]["disruptionsAllowed"]
    )
    kube.post("pods", "drained-0", "eviction", {"metadata": {"name": "drained-0"}}, namespace)
    wait_for("another pod", lambda: (found := uids(pods(kube, namespace, "drained"))) and found != uids([pod]))
    wait_ready(kube, namespace, "drained")


def test_deleting_a_service_leaves_nothing(kube: Kube, namespace: str) -> None:
    apply(
        kube, namespace, service("gone", engine={"placementRules": {"inline": "a: 1"}}, endpoint={"networkPolicy": {}})
    )
    wait_ready(kube, namespace, "gone")
    kube.delete("inferenceservices", "gone", namespace)
    for resource in ("pods", "services", "poddisruptionbudgets", "networkpolicies", "configmaps"):
        labels = {SERVICE: "gone"}
        # The garbage collector discovers new kinds only every 30 s.
        wait_for(f"no {resource}", lambda r=resource, labels=labels: not kube.list(r, namespace, labels))
