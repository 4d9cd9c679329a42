"""Reading live pods, and restoring their metadata."""

import pytest
from builders import live_pod, pod, service

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.live_pod import Pod, image_in_use, pod_patch, with_current_hash
from ballast_operator.names import ANNOTATION_RESTARTED_AT, ANNOTATION_SPEC_HASH, ENV_SPEC_HASH, LABEL_REPLICA
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.spec_hash import settings_hash, spec_hash


def test_an_unchanged_pod_needs_no_patch():
    assert pod_patch(Pod.from_api(live_pod()), build_pod(service(), ChildOptions(), Attempt(0))) is None


def test_another_default_image_does_not_change_running_pods():
    newer = build_pod(service(), ChildOptions(runtime_image="runtime:2"), Attempt(0))
    assert pod_patch(Pod.from_api(live_pod()), newer) is None
    assert newer["metadata"]["annotations"][ANNOTATION_SPEC_HASH] == Pod.from_api(live_pod()).spec_hash


def test_labels_and_owner_of_a_pod_are_restored_and_its_images_are_not_changed():
    body, want = live_pod(), build_pod(service(), ChildOptions(), Attempt(0))
    del body["metadata"]["labels"]["serving.ballast.dev/service"]
    body["metadata"]["ownerReferences"] = []
    body["spec"]["containers"].append({"name": "sidecar", "image": "x"})
    body["spec"]["containers"][0]["image"] = "mirror.example/runtime@sha256:abc"
    patch = pod_patch(Pod.from_api(body), want)
    assert patch["metadata"]["labels"] == {"serving.ballast.dev/service": "s"}
    assert patch["metadata"]["ownerReferences"] == want["metadata"]["ownerReferences"]
    assert patch.keys() == {"metadata"}


def without_own_hash(body):
    """The pod as older operators created it, with the hash only in the annotation."""
    engine = body["spec"]["containers"][0]
    engine["env"] = [item for item in engine["env"] if item["name"] != ENV_SPEC_HASH]
    return body


@pytest.mark.parametrize("edited", [{}, {ANNOTATION_SPEC_HASH: "other"}])
def test_an_edited_spec_hash_replaces_nothing_and_is_restored(edited):
    body, want = live_pod(), build_pod(service(), ChildOptions(), Attempt(0))
    body["metadata"]["annotations"] = edited
    found = Pod.from_api(body)
    assert found.spec_hash == spec_hash(service().spec)
    assert pod_patch(found, want) == {"metadata": {"annotations": {ANNOTATION_SPEC_HASH: found.spec_hash}}}


def test_pods_of_operators_that_wrote_the_annotation_alone_stay_current():
    found, want = Pod.from_api(without_own_hash(live_pod())), build_pod(service(), ChildOptions(), Attempt(0))
    assert found.spec_hash == spec_hash(service().spec)
    assert pod_patch(found, want) is None


def test_a_pod_of_an_earlier_spec_keeps_its_own_hash():
    found = Pod.from_api(live_pod())
    assert pod_patch(found, build_pod(service(image="other"), ChildOptions(), Attempt(0))) is None


def test_a_pod_is_read_from_the_apis_json():
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
    assert (found.last_exit.exit_code, found.last_exit.message) == (3, "bad model")
    assert found.waiting == ("CrashLoopBackOff", "back-off")
    assert found.other_containers == ("mesh-init",)
    assert found.incarnation != pod().incarnation


def test_a_changed_or_lost_replica_label_does_not_change_the_replica():
    assert Pod.from_api(live_pod(Attempt(1, 2), without=[LABEL_REPLICA])).replica == 1
    changed = live_pod(Attempt(1, 2))
    changed["metadata"]["labels"][LABEL_REPLICA] = "5"
    changed["metadata"]["annotations"] = {}
    assert (Pod.from_api(changed).replica, Pod.from_api(changed).attempt) == (1, 2)


def test_a_running_pod_gets_labels_annotations_and_tolerations_in_place():
    requested = {"labels": {"team": "a", "old": "x"}, "annotations": {"note": "1", "gone": "y"}}
    body = live_pod_of(service(podMetadata=requested))
    body["metadata"]["labels"]["theirs"] = "yes"
    body["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready"}]
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    changed = service(
        podMetadata={"labels": {"team": "b"}, "annotations": {"note": "1", "new": "z"}},
        scheduling={"tolerations": [toleration]},
    )
    want = build_pod(changed, ChildOptions(), Attempt(0))
    found = with_current_hash(changed, Pod.from_api(running(body)))
    assert found.spec_hash == spec_hash(changed.spec)
    patch = pod_patch(found, want)
    assert patch["metadata"]["labels"] == {"team": "b", "old": None}
    annotations = patch["metadata"]["annotations"]
    assert (annotations["new"], annotations["gone"], "note" in annotations) == ("z", None, False)
    assert patch["spec"] == {"tolerations": [{"key": "node.kubernetes.io/not-ready"}, toleration]}


def test_a_pod_whose_engine_does_not_run_is_replaced_for_any_change():
    made, changed = service(), service(imagePullSecrets=[{"name": "registry"}])
    waiting = Pod.from_api(live_pod_of(made))
    assert with_current_hash(changed, waiting).spec_hash != spec_hash(changed.spec)
    assert with_current_hash(made, waiting).spec_hash == spec_hash(made.spec)
    assert with_current_hash(changed, Pod.from_api(running(live_pod_of(made)))).spec_hash == spec_hash(changed.spec)


def test_a_pod_of_an_operator_that_hashed_more_fields_is_current():
    requested = service(podMetadata={"labels": {"team": "a"}}, engine={"drainTimeoutSeconds": 1})
    body = live_pod_of(requested)
    (of_hash,) = [item for item in body["spec"]["containers"][0]["env"] if item["name"] == ENV_SPEC_HASH]
    of_hash["value"] = settings_hash(requested.spec)
    assert with_current_hash(requested, Pod.from_api(running(body))).spec_hash == spec_hash(requested.spec)
    other = service(image="other")
    assert with_current_hash(other, Pod.from_api(running(body))).spec_hash != spec_hash(other.spec)


def live_pod_of(made):
    body = build_pod(made, ChildOptions(), Attempt(0))
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return body


def running(body):
    return {**body, "status": {"containerStatuses": [{"name": "engine", "state": {"running": {}}}]}}


def test_replicas_of_one_spec_use_the_image_of_running_ones():
    of = service(replicas=2)
    assert image_in_use(of, [pod(0, image="runtime:1")]) == "runtime:1"
    assert image_in_use(of, []) is None
    others = (
        pod(0, spec_hash="old"),
        pod(0, running=False, ready=False),
        pod(0, terminating=True),
        pod(5),
    )
    assert [image_in_use(of, [other]) for other in others] == [None] * 4


def test_a_requested_restart_replaces_each_pod_once():
    def requested(at):
        return service(annotations={ANNOTATION_RESTARTED_AT: at})

    def is_current(of, made):
        found = Pod.from_api(running(live_pod_of(made)))
        return with_current_hash(of, found).spec_hash == spec_hash(of.spec)

    assert is_current(requested("1"), requested("1"))
    assert not is_current(requested("1"), service())
    assert not is_current(requested("2"), requested("1"))
    assert is_current(service(), requested("1")), "the annotation is removed, the pod stays"
    assert is_current(requested(""), service())
