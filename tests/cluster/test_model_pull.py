"""A model pulled from a hub with a real control plane; the Job's pods are simulated, and this test acts as kubelet."""

from __future__ import annotations

import pytest

from devkit.cluster.kube import Kube
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.pulling import PULL, make_claim, pulled, pulling_pod, set_status, terminated
from devkit.cluster.service.specs import condition, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")


def events(kube: Kube, namespace: str, name: str) -> dict[str, str]:
    found = kube.list("events", namespace)
    return {event["reason"]: event["type"] for event in found if event["involvedObject"]["name"] == name}


def test_services_share_a_pull_until_the_claim_is_deleted(kube: Kube, namespace: str, answers: PodAnswers) -> None:
    kube.apply("inferenceservices", pulled("first"), namespace)
    wait_condition(kube, namespace, "first", "Ready", "False", "ClaimMissing")
    make_claim(kube, namespace)
    before, answers.pages["/readyz"] = answers.pages["/readyz"], (503, {"status": "pulling", "progress": 0.42})
    try:
        pod = pulling_pod(kube, namespace)
        assert pod["status"]["qosClass"] == "Burstable", "whole CPUs are reserved for engines"
        found = wait_condition(kube, namespace, "first", "ModelPulled", "False", "Pulling")
        wait_for("its progress", lambda: "40 %" in condition(kube, namespace, "first", "ModelPulled")["message"])
        assert found["message"].startswith("org/tiny:Q8_0@main")
        kube.apply("inferenceservices", pulled("second"), namespace)
        wait_condition(kube, namespace, "second", "ModelPulled", "False", "Pulling")
        names = {found["metadata"]["name"] for found in kube.list("pods", namespace)}
        assert names == {pod["metadata"]["name"]}, "no engine starts before the pull completes, and one Job serves both"
    finally:
        answers.pages["/readyz"] = before
    set_status(kube, pod, phase="Succeeded", state=terminated(0, "Pulled", "org/tiny:Q8_0 at 1234"))
    for name in ("first", "second"):
        wait_ready(kube, namespace, name)
        assert "org/tiny:Q8_0 at 1234" in condition(kube, namespace, name, "ModelPulled")["message"]
    wait_for("its event", lambda: events(kube, namespace, "first").get("Pulled") == "Normal")

    [job] = kube.list("jobs", namespace)
    for name in ("first", "second"):
        kube.delete("inferenceservices", name, namespace)
    wait_for(
        "the engines to go",
        lambda: not [p for p in kube.list("pods", namespace) if PULL not in p["metadata"]["labels"]],
    )
    assert kube.get("jobs", job["metadata"]["name"], namespace)["metadata"]["uid"] == job["metadata"]["uid"]
    kube.apply("inferenceservices", pulled("third"), namespace)
    wait_ready(kube, namespace, "third")
    kube.delete("inferenceservices", "third", namespace)
    kube.delete("persistentvolumeclaims", "models", namespace)
    wait_for("Job and policy to go", lambda: not kube.list("jobs", namespace) + kube.list("networkpolicies", namespace))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"s3": {"bucket": "models", "prefix": "tiny", "quant": "Q8_0"}}, "s3://models/tiny:Q8_0"),
        (
            {"oci": {"reference": "registry.test/tiny:v1", "pullSecretRef": {"name": "x"}}},
            "oci://registry.test/tiny:v1",
        ),
    ],
    ids=["s3", "oci"],
)
def test_a_model_of_an_object_store_is_pulled_like_one_of_a_hub(
    kube: Kube, namespace: str, source: dict[str, dict[str, object]], name: str
) -> None:
    make_claim(kube, namespace)
    body = pulled("stored")
    [(kind, fields)] = source.items()
    body["spec"]["model"] = {"source": {kind: {**fields, "pvc": {"claimName": "models"}}}}
    kube.apply("inferenceservices", body, namespace)
    pod = pulling_pod(kube, namespace)
    assert pod["spec"]["containers"][0]["args"][:2] == ["pull", name]
    found = wait_condition(kube, namespace, "stored", "ModelPulled", "False", "Pulling")
    assert found["message"].startswith(name)
    set_status(kube, pod, phase="Succeeded", state=terminated(0, "Pulled", "tiny at 1234"))
    wait_ready(kube, namespace, "stored")


def test_a_pull_ends_with_the_last_service_that_names_it(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    for name in ("first", "second"):
        kube.apply("inferenceservices", pulled(name), namespace)
    pulling_pod(kube, namespace)

    def owners() -> set[str]:
        [job] = kube.list("jobs", namespace)
        return {owner["name"] for owner in job["metadata"].get("ownerReferences", [])}

    wait_for("both to own it", lambda: owners() == {"first", "second"})
    kube.delete("inferenceservices", "first", namespace)
    wait_for("one to own it", lambda: owners() == {"second"})
    kube.delete("inferenceservices", "second", namespace)
    wait_for("the Job to go", lambda: not kube.list("jobs", namespace))
    kube.delete("persistentvolumeclaims", "models", namespace)
    wait_for("the claim to be deleted", lambda: not kube.list("persistentvolumeclaims", namespace))


def test_a_claim_can_be_deleted_while_a_pull_fills_it(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    kube.apply("inferenceservices", pulled("first"), namespace)
    pulling_pod(kube, namespace)
    kube.delete("persistentvolumeclaims", "models", namespace)
    wait_for("the claim to be deleted", lambda: not kube.list("persistentvolumeclaims", namespace))
    wait_condition(kube, namespace, "first", "Ready", "False", "ClaimMissing")


def test_a_failed_pull_reports_the_fix_and_is_retried(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    kube.apply("inferenceservices", pulled("stuck"), namespace)
    pod = pulling_pod(kube, namespace)
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    for code, reason, advice in (
        (3, "HubUnreachable", "allow outbound connections from this namespace"),
        (2, "TokenRefused", "tokenSecretRef"),
        (4, "VolumeFull", "enlarge the volume"),
    ):
        last = {"lastState": terminated(code, reason, "the hub said no"), "restartCount": 1}
        set_status(kube, pod, state={**waits, "running": None}, container=last)
        found = wait_condition(kube, namespace, "stuck", "Ready", "False", reason)
        assert "the hub said no" in found["message"]
        assert advice in found["message"]
        wait_for("its event", lambda reason=reason: events(kube, namespace, "stuck").get(reason) == "Warning")
    set_status(kube, pod, container=last)
    found = wait_condition(kube, namespace, "stuck", "ModelPulled", "False", "Pulling")
    assert "after the hub said no" in found["message"]


def test_an_evicted_pull_is_reported_and_restarted(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    kube.apply("inferenceservices", pulled("evicted"), namespace)
    pod = pulling_pod(kube, namespace)
    set_status(kube, pod, phase="Failed", reason="Evicted", message="The node was low on ephemeral-storage.")
    pulling_pod(kube, namespace, other_than=pod["metadata"]["name"])
    found = wait_condition(kube, namespace, "evicted", "ModelPulled", "False", "Pulling")
    wait_for(
        "the eviction", lambda: "ephemeral-storage" in condition(kube, namespace, "evicted", "ModelPulled")["message"]
    )
    assert found["reason"] == "Pulling"


def test_a_stuck_job_is_recreated_for_a_new_image(kube: Kube, namespace: str) -> None:
    make_claim(kube, namespace)
    body = pulled("image")
    body["spec"]["scheduling"]["nodeSelector"] = {BEHAVIOUR: "unpullable"}
    kube.apply("inferenceservices", body, namespace)
    wait_condition(kube, namespace, "image", "Ready", "False", "ImagePullFailed")
    [job] = kube.list("jobs", namespace)
    body["spec"]["scheduling"]["nodeSelector"] = {BEHAVIOUR: "run"}
    body["spec"]["image"] = "made.up/runtime:2"
    kube.apply("inferenceservices", body, namespace)
    pod = pulling_pod(kube, namespace)
    assert pod["spec"]["containers"][0]["image"] == "made.up/runtime:2"
    assert pod["metadata"]["ownerReferences"][0]["uid"] != job["metadata"]["uid"]
