"""Passes over a service whose pod serves an earlier spec: the pod is stopped only based on fresh reads."""

import asyncio

import pytest
from builders import NOW
from fakes import OPTIONS, REF, FakeApi, custom_resource, live, reconciler

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.control.deciding.take_down import SETTLE_S
from ballast_operator.names import ANNOTATION_RESTARTED_AT
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.spec_hash import spec_hash


def serving_an_earlier_spec():
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}))
    api.add_children()
    api.add_pod(ready=True)
    api.objects["InferenceService", "s"]["spec"]["engine"] = {"cacheLens": 5000}
    return api


def deleted(step, api):
    asyncio.run(step.reconcile(REF))
    return [body["metadata"]["name"] for body in api.written("delete", "Pod")]


def test_a_pod_that_was_just_read_is_replaced():
    api = serving_an_earlier_spec()
    assert deleted(reconciler(api), api) == ["s-0"]


def test_a_pod_that_was_read_long_ago_is_not_stopped():
    api = serving_an_earlier_spec()
    step = reconciler(api)
    times = iter([0.0, 1.0])
    object.__setattr__(step, "clock", lambda: next(times, 60.0))
    assert deleted(step, api) == []
    assert step.state.disturbed == 60.0


@pytest.mark.parametrize(
    ("answer", "stalls"),
    [
        (("list", 200, 0.1), False),
        (("list", 200, 9.0), True),
        (("get", 503, 0.1), True),
        (("get", 429, 0.1), True),
        (("patch", 0, 0.1), True),
        (("create", 500, 0.1), False),
        (("try", 200, 9.0), False),
        (("get", 404, 0.1), False),
    ],
    ids=str,
)
def test_late_and_failed_reads_and_no_webhook_delay_a_rollout(answer, stalls):
    api = serving_an_earlier_spec()
    step = reconciler(api)
    step.state.note_answer(*answer, 0.0)
    assert (deleted(step, api) == []) is stalls
    object.__setattr__(step, "clock", lambda: SETTLE_S)
    assert deleted(step, api)[:1] == ["s-0"]


def test_a_scaled_down_service_keeps_its_last_pod_if_the_new_spec_has_failed():
    api = serving_an_earlier_spec()
    api.objects["InferenceService", "s"]["spec"]["replicas"] = 1
    body = api.objects["InferenceService", "s"]
    failed = live(build_pod(InferenceService.from_api(body), OPTIONS, Attempt(1)))
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    engine = {"name": "engine", "started": False, "restartCount": 3, "state": state, "lastState": ended}
    api.put({**failed, "status": {"phase": "Running", "containerStatuses": [engine]}})
    step = reconciler(api)
    assert deleted(step, api) == ["s-1"]
    del api.objects["Pod", "s-1"]
    assert deleted(step, api) == ["s-1"]
    assert api.conditions["Ready"] == ("False", "OutOfMemory")
    api.objects["InferenceService", "s"]["spec"]["engine"] = {"cacheLens": 6000}
    assert deleted(step, api) == ["s-1", "s-0"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {
                "initContainerStatuses": [
                    {"name": "proxy", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
                ]
            },
            "SidecarNotStarted",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "engine", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no"}}}
                ]
            },
            "CreateContainerConfigError",
        ),
    ],
    ids=["sidecar", "configuration"],
)
def test_a_scaled_down_service_keeps_its_last_pod_if_another_container_has_failed(status, reason):
    api = serving_an_earlier_spec()
    body = api.objects["InferenceService", "s"]
    body["spec"]["replicas"] = 1
    failed = live(build_pod(InferenceService.from_api(body), OPTIONS, Attempt(1)))
    api.put({**failed, "spec": {**failed["spec"], "nodeName": "n"}, "status": {"phase": "Pending", **status}})
    assert deleted(reconciler(api), api) == ["s-1"]
    del api.objects["Pod", "s-1"]
    with_status(api, reason)
    assert deleted(reconciler(api), api) == ["s-1"]
    assert api.conditions["Ready"] == ("False", reason)


def test_the_check_of_images_ends_while_a_failed_spec_is_held():
    api = serving_an_earlier_spec()
    api.objects["InferenceService", "s"]["spec"]["image"] = "new"
    step = reconciler(api)
    assert deleted(step, api) == []
    (check,) = api.written("create", "Pod")
    api.put(live(check))
    with_status(api, "EngineCrashed")
    assert deleted(step, api) == ["s-image-check"]


def with_status(api, reason):
    body = api.objects["InferenceService", "s"]
    failed = {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": "",
        "lastTransitionTime": NOW.isoformat(),
    }
    body["status"] = {"specHash": spec_hash(InferenceService.from_api(body).spec), "conditions": [failed]}


def test_a_requested_restart_replaces_pods_of_a_spec_that_has_failed():
    api = serving_an_earlier_spec()
    del api.objects["InferenceService", "s"]["spec"]["engine"]
    api.objects["InferenceService", "s"]["metadata"]["annotations"] = {ANNOTATION_RESTARTED_AT: "now"}
    with_status(api, "EngineCrashed")
    assert deleted(reconciler(api), api) == ["s-0"]


@pytest.mark.parametrize(("ready", "stopped"), [(False, []), (True, ["s-0"])])
def test_a_rollout_continues_when_the_surge_pod_that_has_failed_serves(ready, stopped):
    api = serving_an_earlier_spec()
    body = api.objects["InferenceService", "s"]
    body["spec"]["rollout"] = {"maxSurge": 1}
    surge = live(build_pod(InferenceService.from_api(body), OPTIONS, Attempt(1)))
    conditions = [{"type": "Ready", "status": str(ready)}]
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    engine = {"name": "engine", "started": ready, "restartCount": 1, "state": {"running": {}}, "lastState": ended}
    api.put({**surge, "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [engine]}})
    with_status(api, "OutOfMemory")
    assert deleted(reconciler(api), api) == stopped
    (ready_now,) = [it for it in api.objects["InferenceService", "s"]["status"]["conditions"] if it["type"] == "Ready"]
    assert ("s-1, a surge pod of this spec, has failed: change the spec" in ready_now["message"]) is not ready


@pytest.mark.parametrize(("unavailable", "is_stalled"), [(1, False), (0, True)])
def test_a_refused_surge_stalls_only_a_rollout_that_needs_it(unavailable, is_stalled):
    api = serving_an_earlier_spec()
    api.objects["InferenceService", "s"]["spec"]["rollout"] = {"maxSurge": 1, "maxUnavailable": unavailable}
    api.failures = {("create", "Pod"): 403}
    asyncio.run(reconciler(api).reconcile(REF))
    assert ("Stalled" in api.conditions) is is_stalled
