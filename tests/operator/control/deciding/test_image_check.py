"""Which images are checked before a serving pod is replaced, and the result of the check's pod."""

import pytest
from builders import FIRST, live_pod, pod, service

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.image_check import check_result, unproved_images
from ballast_operator.pod_requests import pod_requests
from ballast_operator.resources.image_check import build_image_check
from ballast_operator.resources.pod import build_pod


def successor(**spec):
    return build_pod(service(**spec), ChildOptions(), FIRST)


def check(status, **spec):
    want = build_image_check(service(**spec), successor(**spec), [("new:1", "IfNotPresent")])
    return check_result({**want, "status": status})


def waits(reason, message=""):
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def test_an_image_that_a_pod_of_the_service_has_run_needs_no_check():
    serving = pod(0, body=live_pod())
    assert unproved_images(successor(), [serving]) == []
    assert unproved_images(successor(image="new:1"), [serving]) == [("new:1", "IfNotPresent")]
    never = pod(0, body=live_pod(), ready=False)
    assert len(unproved_images(successor(), [never])) == 1


def test_images_of_sidecars_are_checked_too():
    sidecar = {"name": "logger", "image": "logger:1", "cpu": "1", "memory": "1Gi"}
    assert unproved_images(successor(sidecars=[sidecar]), [pod(0, body=live_pod())]) == [("logger:1", "IfNotPresent")]


def test_the_image_check_runs_on_the_engines_nodes_and_is_not_a_service_pod():
    scheduling = {
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        },
    }
    spec = {"scheduling": scheduling, "imagePullSecrets": [{"name": "registry"}], "serviceAccountName": "models"}
    made, engine = build_image_check(service(**spec), successor(**spec), [("new:1", "Always")]), successor(**spec)
    for field in ("nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName"):
        assert made["spec"][field] == engine["spec"][field]
    assert list(made["spec"]["affinity"]) == ["nodeAffinity"]
    assert "serving.ballast.dev/service" not in made["metadata"]["labels"]
    assert "volumes" not in made["spec"]
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "Always"


def test_the_image_check_fits_on_a_node_that_the_serving_pod_fills():
    made = build_image_check(service(), successor(), [("new:1", "Always"), ("logger:1", "Always")])
    assert set(pod_requests(made["spec"]).values()) == {0}
    assert all(set(one["resources"]["requests"]) == {"cpu", "memory"} for one in made["spec"]["containers"])


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled_is_reported(reason):
    assert check(waits(reason, "not found")) == ("ImagePullFailed", "s-image-check: not found")


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed", "reason": "TopologyAffinityError"},
        {"containerStatuses": [{"state": {"running": {}}}]},
        {"containerStatuses": [{"state": {"terminated": {"exitCode": 127}}}]},
        waits("CreateContainerError", "no such program"),
    ],
    ids=str,
)
def test_a_container_that_started_proves_its_image(status):
    assert check(status) is None


@pytest.mark.parametrize("status", [{}, waits("ContainerCreating"), waits("")], ids=str)
def test_a_running_pull_is_awaited(status):
    assert check(status) == ("CheckingImage", "s-image-check pulls new:1")


def test_a_check_without_a_matching_node_is_reported():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert check({"conditions": [condition]}) == ("Unschedulable", "s-image-check: 0/3 nodes")
