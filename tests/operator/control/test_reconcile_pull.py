"""Passes over a service whose model comes from a hub."""

import asyncio
import json

import pytest
from fakes import REF, FakeApi, FakeProber, custom_resource, live, reconciler

from ballast_operator.cluster.kinds import CLAIM
from ballast_operator.control.observing.probe import ProbeError

SOURCE = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}}
CONTAINER = {"name": "pull", "state": {"running": {}}}


def api_with(*, claim=True, failures=None, **spec):
    api = FakeApi(custom_resource(model={"source": {"huggingFace": SOURCE}}, **spec), failures)
    if claim:
        api.put({"kind": CLAIM.name, "metadata": {"name": "models", "namespace": "ns", "uid": "c"}})
    api.add_children()
    return api


def run(api, prober=None):
    return asyncio.run(reconciler(api, prober).reconcile(REF))


def with_job(api, *, done=False, container=None, image=None):
    """Add the Job that the first pass created, with a pod."""
    run(api)
    [job] = api.written("create", "Job")
    conditions = [{"type": "Complete", "status": "True"}] if done else []
    if image is not None:
        job["metadata"]["annotations"] = {"serving.ballast.dev/pull-template": image}
    api.put(live(job, status={"conditions": conditions}))
    metadata = {"name": "pull-pod", "labels": job["spec"]["template"]["metadata"]["labels"]}
    status = {"phase": "Running", "podIP": "10.0.0.9", "containerStatuses": [container or CONTAINER]}
    api.put(live({"kind": "Pod", "metadata": metadata}, status=status))
    api.put(live({**api.written("apply", "NetworkPolicy")[-1]}))
    api.writes.clear()
    return job


def test_the_job_and_its_policy_are_created_first_and_pods_after_it_completes():
    api = api_with()
    assert run(api) == 1, "the pull may complete soon"
    assert [(verb, kind) for verb, kind, _ in api.writes if kind in ("Job", "NetworkPolicy", "Pod")] == [
        ("apply", "NetworkPolicy"),
        ("create", "Job"),
    ]
    assert api.conditions["ModelPulled"] == ("False", "PullStarting")
    assert api.conditions["Ready"] == ("False", "PullStarting")


def test_progress_is_read_from_the_pod():
    class Pulling(FakeProber):
        async def readiness(self, host, port=None):
            assert host == "10.0.0.9"
            return False, {"status": "pulling", "progress": 0.31}

    api = api_with()
    with_job(api)
    assert run(api, Pulling()) == 1
    conditions = api.objects["InferenceService", "s"]["status"]["conditions"]
    assert "30 % done" in next(c["message"] for c in conditions if c["type"] == "ModelPulled")
    assert api.written("create", "Job") == []


@pytest.mark.parametrize("answer", [{}, {"progress": "x"}, {"progress": 7}, {"progress": []}, None])
def test_a_malformed_answer_is_no_progress(answer):
    class Odd(FakeProber):
        async def readiness(self, host, port=None):
            if answer is None:
                raise ProbeError("no")
            return False, answer

    api = api_with()
    with_job(api)
    run(api, Odd())
    assert api.conditions["ModelPulled"] == ("False", "Pulling")


def test_a_completed_pull_starts_the_pods():
    api = api_with()
    with_job(api, done=True)
    run(api)
    assert api.conditions["ModelPulled"] == ("True", "Pulled")
    assert len(api.written("create", "Pod")) == 1
    assert [pod["metadata"]["name"] for pod in api.written("delete", "Pod")] == ["pull-pod"], (
        "the pod would block the claim"
    )
    _, handed_over = api.written("merge", "Job")
    assert [owner["uid"] for owner in handed_over["metadata"]["ownerReferences"]] == ["c"], "the claim owns the Job"


def test_a_claim_that_is_being_deleted_does_not_wait_for_its_pull():
    api = api_with()
    job = with_job(api)
    api.objects["PersistentVolumeClaim", "models"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    run(api)
    assert [gone["metadata"]["name"] for gone in api.written("delete", "Job")] == [job["metadata"]["name"]]
    assert api.conditions["Ready"] == ("False", "ClaimMissing")


def test_pods_of_an_earlier_spec_keep_running_during_a_pull():
    api = api_with()
    earlier = api.add_pod(ready=True)
    earlier["metadata"]["annotations"] = {}
    for variable in earlier["spec"]["containers"][0]["env"]:
        if variable["name"] == "POD_SPEC_HASH":
            variable["value"] = "another"
    run(api)
    assert api.written("delete", "Pod") == []
    assert api.conditions["ModelPulled"][0] == "False"
    assert api.conditions["Available"] == ("True", "MinimumReplicasAvailable")


def test_a_missing_claim_is_reported():
    api = api_with(claim=False)
    run(api)
    assert api.conditions["Ready"] == ("False", "ClaimMissing")
    assert api.written("create", "Job") == []


def test_a_pull_failure_is_the_reason_of_ready():
    message = {"terminated": {"exitCode": 2, "message": json.dumps({"reason": "TokenRefused", "message": "401"})}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    api = api_with()
    with_job(api, container={"name": "pull", "state": waiting, "lastState": message})
    run(api)
    assert api.conditions["Ready"] == ("False", "TokenRefused")
    assert [event["reason"] for event in api.written("create", "Event")] == ["TokenRefused"]


def test_a_failing_job_with_another_image_is_replaced():
    api = api_with()
    stuck = {"name": "pull", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
    with_job(api, container=stuck, image="made from something else")
    run(api)
    assert len(api.written("delete", "Job")) == 1


@pytest.mark.parametrize(("verb", "kind"), [("get", "Job"), ("create", "Job"), ("get", "PersistentVolumeClaim")])
def test_a_missing_permission_is_reported_and_holds_the_pods(verb, kind):
    api = api_with(failures={(verb, kind): 403})
    run(api)
    assert api.conditions["Ready"] == ("False", "ChildRefused")
    assert api.written("create", "Pod") == []


def test_a_job_that_another_service_just_created_is_no_error():
    api = api_with(failures={("create", "Job"): 409})
    run(api)
    assert api.conditions["ModelPulled"] == ("False", "PullStarting")


def test_a_foreign_job_is_not_changed():
    api = api_with()
    job = with_job(api, done=True)
    api.objects["Job", job["metadata"]["name"]]["metadata"]["labels"] = {}
    run(api)
    assert api.conditions["Ready"] == ("False", "ForeignObject")
    assert api.written("create", "Pod") == []
