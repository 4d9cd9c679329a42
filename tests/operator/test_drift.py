"""What counts as changed, and whose an object is."""

import copy

import pytest
from builders import UID, pod, service

from ballast_operator.control.drift import has_drifted, stamped
from ballast_operator.control.ownership import conflict, is_ours
from ballast_operator.control.pods import Pod, metadata_patch
from ballast_operator.desired import desired_children
from ballast_operator.names import ANNOTATION_SPEC_HASH, ENV_SPEC_HASH, LABEL_OWNER_UID
from ballast_operator.options import ChildOptions
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.spec_hash import spec_hash

CHILDREN = {
    child["kind"]: stamped(child)
    for child in desired_children(service(endpoint={"networkPolicy": {}}), ChildOptions(), pod_monitors=True)
}


def live(kind):
    """As the API server returns it: with defaults and bookkeeping."""
    body = copy.deepcopy(CHILDREN[kind])
    body["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"]["added"] = "by default"
    return body


@pytest.mark.parametrize("kind", CHILDREN)
def test_defaults_and_bookkeeping_are_no_drift(kind):
    assert not has_drifted(CHILDREN[kind], live(kind))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Service", lambda body: body["spec"]["selector"].update({"serving.ballast.dev/service": "other"})),
        ("Service", lambda body: body["spec"]["ports"][0].update(port=1)),
        ("Service", lambda body: body["spec"].pop("ports")),
        ("Service", lambda body: body["metadata"].pop("labels")),
        ("Service", lambda body: body["metadata"].pop("ownerReferences")),
        ("Service", lambda body: body["metadata"]["annotations"].update({"serving.ballast.dev/applied-hash": "older"})),
        ("PodDisruptionBudget", lambda body: body["spec"].update(minAvailable=7)),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"].append({})),
        ("NetworkPolicy", lambda body: body["spec"]["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ],
)
def test_a_changed_field_of_ours_is_drift(kind, change):
    body = live(kind)
    change(body)
    assert has_drifted(CHILDREN[kind], body)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["metadata"]["labels"].update(mine="yes"),
        lambda body: body["metadata"]["annotations"].update(mine="yes"),
        lambda body: body["spec"]["ports"].append({"name": "more", "port": 99}),
        lambda body: body["metadata"]["ownerReferences"].append({"uid": "other", "kind": "Thing"}),
    ],
)
def test_what_others_add_beside_our_fields_is_theirs(change):
    body = live("Service")
    change(body)
    assert not has_drifted(CHILDREN["Service"], body)


def test_a_field_that_is_no_longer_wanted_is_drift():
    less = copy.deepcopy(CHILDREN["Service"])
    less["metadata"].pop("annotations")
    less["spec"].pop("type")
    assert has_drifted(stamped(less), live("Service"))


def owned(owners, labels=None):
    return {"kind": "Service", "metadata": {"name": "s", "ownerReferences": owners, "labels": labels or {}}}


def test_ours_is_what_the_service_controls_or_what_lost_its_owner():
    ours = {"kind": "InferenceService", "name": "s", "uid": UID, "controller": True}
    other = {"kind": "Deployment", "name": "d", "uid": "x", "controller": True}
    assert is_ours(owned([ours]), UID)
    assert is_ours(owned(None, {LABEL_OWNER_UID: UID}), UID)
    assert not is_ours(owned([other], {LABEL_OWNER_UID: UID}), UID)
    assert not is_ours(owned([]), UID)
    assert "Deployment d" in conflict(owned([other]))
    assert "no owner" in conflict(owned([]))
    assert "earlier" in conflict(owned([{**ours, "uid": "before"}]))


def live_pod():
    body = build_pod(service(), ChildOptions(), Attempt(0))
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return body


def test_a_pod_as_it_was_made_needs_no_healing():
    assert metadata_patch(Pod.from_api(live_pod()), build_pod(service(), ChildOptions(), Attempt(0))) is None


def test_an_operator_with_another_runtime_image_leaves_running_pods_alone():
    newer = build_pod(service(), ChildOptions(runtime_image="runtime:2"), Attempt(0))
    assert metadata_patch(Pod.from_api(live_pod()), newer) is None
    assert newer["metadata"]["annotations"][ANNOTATION_SPEC_HASH] == Pod.from_api(live_pod()).spec_hash


def test_labels_and_owner_of_a_pod_are_given_back_and_its_images_left_alone():
    body, want = live_pod(), build_pod(service(), ChildOptions(), Attempt(0))
    del body["metadata"]["labels"]["serving.ballast.dev/service"]
    body["metadata"]["ownerReferences"] = []
    body["spec"]["containers"].append({"name": "sidecar", "image": "x"})
    body["spec"]["containers"][0]["image"] = "mirror.example/runtime@sha256:abc"
    patch = metadata_patch(Pod.from_api(body), want)
    assert patch["metadata"]["labels"] == {"serving.ballast.dev/service": "s"}
    assert patch["metadata"]["ownerReferences"] == want["metadata"]["ownerReferences"]
    assert patch.keys() == {"metadata"}


def without_own_hash(body):
    """As operators made pods that wrote the hash into the annotation alone."""
    engine = body["spec"]["containers"][0]
    engine["env"] = [item for item in engine["env"] if item["name"] != ENV_SPEC_HASH]
    return body


@pytest.mark.parametrize("edited", [{}, {ANNOTATION_SPEC_HASH: "other"}])
def test_a_spec_hash_that_somebody_edits_replaces_nothing_and_is_given_back(edited):
    body, want = live_pod(), build_pod(service(), ChildOptions(), Attempt(0))
    body["metadata"]["annotations"] = edited
    found = Pod.from_api(body)
    assert found.spec_hash == spec_hash(service().spec)
    assert metadata_patch(found, want) == {"metadata": {"annotations": {ANNOTATION_SPEC_HASH: found.spec_hash}}}


def test_pods_of_operators_that_wrote_the_annotation_alone_stay_current():
    found, want = Pod.from_api(without_own_hash(live_pod())), build_pod(service(), ChildOptions(), Attempt(0))
    assert found.spec_hash == spec_hash(service().spec)
    assert metadata_patch(found, want) is None


def test_a_pod_of_an_earlier_spec_keeps_its_own_hash():
    found = Pod.from_api(live_pod())
    assert metadata_patch(found, build_pod(service(image="other"), ChildOptions(), Attempt(0))) is None


def test_a_pod_is_read_from_what_the_api_says():
    body = live_pod()
    body["spec"]["initContainers"] = [{"name": "mesh-init"}]
    body["spec"]["nodeName"] = "n1"
    body["status"] = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {
                "name": "engine",
                "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "bad model"}},
            }
        ],
    }
    found = Pod.from_api(body)
    assert (found.replica, found.restarts, found.ready, found.running, found.over) == (0, 2, False, False, False)
    assert (found.ended.exit_code, found.ended.message) == (3, "bad model")
    assert found.waiting == ("CrashLoopBackOff", "back-off")
    assert found.strangers == ("mesh-init",)
    assert found.incarnation != pod().incarnation
