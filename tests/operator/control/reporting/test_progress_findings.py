"""When a service that is not ready stops counting as in progress, for users and for tools."""

import pytest
from builders import NOW, pod, seen, service

from ballast_operator.control.deciding.live_pod import ContainerExit
from ballast_operator.control.deciding.rollout import Rollout
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.reporting.findings import find, spec_refused
from ballast_operator.control.reporting.status import build_status
from ballast_operator.resources.pod import load_timeout_s

DEADLINE_S = 600.0
STARTING = {"ready": False, "running": False}


def exits(code, reason="Error", **more):
    return pod(0, last_exit=ContainerExit(code, reason, "no"), **{**STARTING, **more})


TROUBLES = {
    "ImagePullFailed": pod(0, waiting=("ImagePullBackOff", "not found"), **STARTING),
    "Unschedulable": pod(0, unschedulable="0/3 nodes", node=None, **STARTING),
    "OutOfMemory": exits(137, "OOMKilled"),
    "EngineFault": exits(70),
    "EngineExited": exits(1),
    "SidecarNotStarted": pod(0, blocked=("logger", "CrashLoopBackOff"), **STARTING),
    "CreateContainerConfigError": pod(0, waiting=("CreateContainerConfigError", "no secret"), **STARTING),
}


def found(evidence, of=None):
    return find(of or service(), evidence)


def progressing(evidence, of=None):
    finding = found(evidence, of)["Progressing"]
    return finding.status, finding.reason


@pytest.mark.parametrize("reason", TROUBLES)
def test_a_failure_ends_progress_at_the_deadline(reason):
    trouble = TROUBLES[reason]
    assert progressing(seen(trouble, idle_s=DEADLINE_S - 1))[0] == "True"
    late = found(seen(trouble, idle_s=DEADLINE_S))
    assert (late["Progressing"].status, late["Progressing"].reason) == ("False", "ProgressDeadlineExceeded")
    assert f"{reason}: " in late["Progressing"].message
    assert late["Stalled"].holds
    short = service(rollout={"progressDeadlineSeconds": 5})
    assert progressing(seen(trouble, idle_s=5), short)[0] == "False"


@pytest.mark.parametrize(("code", "reason"), [(2, "ConfigInvalid"), (3, "ModelUnusable")])
@pytest.mark.parametrize("running", [False, True])
def test_a_final_failure_ends_progress_immediately(code, reason, running):
    assert progressing(seen(exits(code, running=running))) == ("False", reason)
    assert found(seen(exits(code, running=running)))["Stalled"].reason == reason


def test_an_invalid_image_name_ends_progress_immediately():
    invalid = pod(0, waiting=("InvalidImageName", "bad"), **STARTING)
    assert progressing(seen(invalid)) == ("False", "ImagePullFailed")


def test_an_engine_that_loads_has_its_load_timeout_in_addition():
    loading = pod(0, ready=False)
    limit_s = DEADLINE_S + load_timeout_s(service())
    assert progressing(seen(loading, idle_s=limit_s - 1)) == ("True", "Loading")
    assert progressing(seen(loading, idle_s=limit_s)) == ("False", "ProgressDeadlineExceeded")


def test_a_pod_that_drains_has_its_drain_timeout_in_addition():
    of = service(engine={"drainTimeoutSeconds": 3600})
    leaving = pod(0, of=of, terminating=True)
    waits = seen(leaving, rollout=Rollout(leaving=(leaving,)), idle_s=DEADLINE_S + 3600)
    assert progressing(waits, of) == ("True", "Draining")


def test_a_reported_failure_lasts_while_the_engine_retries():
    again = pod(0, ready=False, restarts=4)
    assert progressing(seen(again, idle_s=DEADLINE_S, failed=True)) == ("False", "ProgressDeadlineExceeded")


def test_a_paused_rollout_is_neither_progressing_nor_failed():
    of = service(rollout={"paused": True})
    old = pod(0, spec_hash="old")
    waits = seen(old, rollout=Rollout(outdated=(old,)), idle_s=10 * DEADLINE_S)
    assert progressing(waits, of) == ("Unknown", "Paused")
    assert "Stalled" not in found(waits, of)
    assert found(waits, of)["Ready"].message == "s-0: of an earlier spec; rollout.paused keeps them"


def test_a_service_at_zero_waits_for_no_address():
    of = service(replicas=0, endpoint={"service": {"type": "LoadBalancer"}})
    assert progressing(seen(), of) == ("False", "UpToDate")


def test_a_service_that_serves_is_not_stalled():
    assert "Stalled" not in found(seen(pod(0)))
    assert "Stalled" not in found(seen(pod(0), delays=("a PodMonitor is refused",)))


def test_a_rejected_optional_object_is_no_failure_and_hides_none():
    delayed = {"delays": ("a PodMonitor is refused",)}
    starting = pod(0, ready=False, running=False)
    assert progressing(seen(starting, **delayed)) == ("False", "Blocked")
    assert "Stalled" not in found(seen(starting, **delayed))
    late = found(seen(TROUBLES["OutOfMemory"], idle_s=DEADLINE_S, **delayed))
    assert late["Stalled"].reason == "ProgressDeadlineExceeded"
    assert found(seen(starting, refusals=("no",)))["Stalled"].reason == "Blocked"


def test_a_pod_that_waits_for_its_endpoint_is_not_stalled():
    evidence = seen(pod(0), behind=frozenset(), unserved="pod-0: ready, but not an endpoint of the Service")
    assert found(evidence)["Ready"].reason == "EndpointsMissing"
    assert "Stalled" not in found(evidence)
    assert "lastFailure" not in build_status(service(), evidence, {}, NOW).to_api()


def test_a_rejected_spec_is_stalled():
    assert spec_refused("SpecInvalid", "no", Finding("True", "MinimumReplicasAvailable"), None)["Stalled"].holds


def test_the_status_keeps_why_the_last_revision_failed():
    trouble = seen(TROUBLES["OutOfMemory"], idle_s=DEADLINE_S)
    first = build_status(service(), trouble, {}, NOW).to_api()
    failure = first["lastFailure"]
    assert (failure["reason"], failure["specHash"]) == ("OutOfMemory", first["specHash"])
    assert "ran out of memory" in failure["message"]
    after = build_status(service(image="fixed"), seen(pod(0, of=service(image="fixed"))), first, NOW).to_api()
    assert after["lastFailure"] == failure
    assert after["specHash"] != failure["specHash"]
