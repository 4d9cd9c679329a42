"""The state of a pull, from its Job, the Job's pods and the container's messages."""

import json

import pytest

from ballast_operator.control.deciding.pull import Pull, Trouble, is_outdated, judge, next_look_s, owners

JOB = {"metadata": {"name": "p", "annotations": {"serving.ballast.dev/pull-template": "a"}}, "status": {}}


def pod(created="2026-01-01T00:00:00Z", **status):
    return {"metadata": {"name": f"p-{created}", "creationTimestamp": created}, "status": status}


def container(state, last=None, phase="Running", **status):
    statuses = [{"name": "sidecar", "state": {}}, {"name": "pull", "state": state, "lastState": last or {}}]
    return pod(phase=phase, containerStatuses=statuses, **status)


def ended(message, code=3, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason, message="why"):
    return ended(json.dumps({"reason": reason, "message": message}))


def test_a_running_pull_belongs_only_to_the_services():
    claim, first, second = ({"kind": "k", "name": uid, "uid": uid} for uid in ("claim", "first", "second"))
    for have, service, wanted in (
        ([], first, [first]),
        ([first], second, [first, second]),
        ([first, second], first, [first, second]),
        ([claim], first, [first]),
    ):
        assert owners({"metadata": {"ownerReferences": have}}, service, claim) == wanted
        assert owners({"metadata": {"ownerReferences": have}}, service, None)[-1:] == wanted[-1:]


def finished(kind, **more):
    return {**JOB, "status": {"conditions": [{"type": kind, "status": "True", **more}]}}


def test_the_end_of_a_pull_is_noticed_soon_and_a_long_one_is_checked_rarely():
    at_s, looks = 0.0, 0
    while at_s < 3600:
        wait_s = next_look_s(at_s)
        assert wait_s <= max(1.0, 0.25 * at_s)
        at_s, looks = at_s + wait_s, looks + 1
    assert looks < 400


def test_a_pull_starts():
    for job, pods in (
        (None, []),
        (JOB, []),
        (JOB, [pod(phase="Pending")]),
        (JOB, [container({"waiting": {"reason": "ContainerCreating"}}, phase="Pending")]),
    ):
        assert judge(job, pods) == Pull()


def test_a_pull_runs_and_is_done():
    running = container({"running": {}}, podIP="10.0.0.9")
    assert judge(JOB, [running]) == Pull(running=True, ip="10.0.0.9")
    done = container(ended('{"reason": "Pulled", "message": "org/tiny at 12"}', 0, "Completed"), phase="Succeeded")
    assert judge(finished("Complete"), [done]) == Pull(done=True, report="org/tiny at 12")
    kept = {"metadata": {"annotations": {"serving.ballast.dev/pulled": "org/tiny at 12"}}}
    assert judge({**finished("Complete"), **kept}, []) == Pull(done=True, report="org/tiny at 12"), "its pod is gone"
    assert judge(finished("Complete"), []) == Pull(done=True)


@pytest.mark.parametrize("reason", ["HubUnreachable", "TokenRefused", "VolumeFull"])
def test_the_failure_of_a_pull_is_known_before_and_during_its_retry(reason):
    trouble = Trouble(reason, "why")
    assert judge(JOB, [container(waiting(reason))]).trouble == trouble
    waits = container({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}, waiting(reason))
    assert judge(JOB, [waits]).trouble == trouble
    again = judge(JOB, [container({"running": {}}, waiting(reason))])
    assert (again.running, again.trouble) == (True, trouble)


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [
        (ended("line\nballast: internal error\n", 70), "PullFailed", "ballast: internal error"),
        (ended("", 137, "OOMKilled"), "OutOfMemory", "the kernel killed the process"),
        (ended("", 9), "PullFailed", "exit code 9"),
        (ended("[" * 100_000), "PullFailed", "[" * 2000),
        (ended('{"reason": 5}'), "PullFailed", '{"reason": 5}'),
        (ended('"text"'), "PullFailed", '"text"'),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "ImagePullBackOff", "no"),
        ({"waiting": {"reason": "CreateContainerConfigError", "message": "no"}}, "CreateContainerConfigError", "no"),
    ],
)
def test_a_failing_container_is_reported_as_a_failure(state, reason, message):
    assert judge(JOB, [container(state, phase="Pending")]).trouble == Trouble(reason, message)


def test_an_eviction_is_reported_until_and_while_the_next_pod_runs():
    evicted = pod(phase="Failed", reason="Evicted", message="low on ephemeral-storage")
    trouble = Trouble("Evicted", "low on ephemeral-storage")
    assert judge(JOB, [evicted]).trouble == trouble
    later = {**container({"running": {}}, podIP="10.0.0.9"), "metadata": pod("2026-01-01T00:01:00Z")["metadata"]}
    assert judge(JOB, [later, evicted]) == Pull(running=True, ip="10.0.0.9", trouble=trouble)


def test_a_pod_without_a_matching_node_is_unschedulable():
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert judge(JOB, [pod(phase="Pending", conditions=[scheduled])]).trouble == Trouble("Unschedulable", "0/3 nodes")


def test_an_ended_job_is_reported():
    found = judge(finished("Failed", reason="DeadlineExceeded", message="too long"), [])
    assert found.trouble == Trouble("PullFailed", "DeadlineExceeded: too long")


def test_only_a_failing_job_is_replaced():
    same = {"metadata": {"annotations": {"serving.ballast.dev/pull-template": "a"}}}
    other = {"metadata": {"annotations": {"serving.ballast.dev/pull-template": "b"}}}
    stuck = Pull(trouble=Trouble("ImagePullBackOff", ""))
    assert is_outdated(JOB, other, stuck)
    assert not is_outdated(JOB, same, stuck)
    assert not is_outdated(JOB, other, Pull(running=True))
    assert not is_outdated(JOB, other, Pull(running=True, trouble=stuck.trouble)), "the next attempt runs"
    assert not is_outdated(JOB, other, Pull(done=True))
