"""Variables, volumes and sidecars that a spec adds to its pods, and which of them are rejected."""

import pytest
from builders import pod, seen, service

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.reporting.findings import find
from ballast_operator.resources.pod import Attempt, build_pod

SIDECAR = {"name": "logger", "image": "logger:1", "cpu": "100m", "memory": "64Mi"}
WORK = {"name": "work", "emptyDir": {"sizeLimit": "1Gi"}}


def built(**spec):
    """The pod spec that is created for the service."""
    return build_pod(service(**spec), ChildOptions(), Attempt(0))["spec"]


def test_without_env_from_the_environment_is_the_operators():
    (engine,) = built(env=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}])["containers"]
    assert engine["env"][0] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert "envFrom" not in engine
    assert not [entry for entry in engine["env"] if entry["name"].startswith("BALLAST_")]


def test_sidecars_start_before_the_engine_and_leave_the_pod_guaranteed():
    pod_spec = built(sidecars=[SIDECAR])
    (sidecar,) = pod_spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["resources"]["requests"] == sidecar["resources"]["limits"] == {"cpu": "100m", "memory": "64Mi"}
    assert [container["name"] for container in pod_spec["containers"]] == ["engine"]
    assert "initContainers" not in built()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"env": [{"name": "HOME", "value": "/root"}]}, "HOME: env must not set HOME, USER"),
        ({"env": [{"name": "POD_SPEC_HASH", "value": "x"}]}, "which the operator sets"),
        ({"env": [{"name": "BALLAST_PORT", "value": "1"}]}, "which belong in engine.extraArgs"),
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "A is listed twice"),
        ({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}, "at most one of value"),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "exactly one of secretKeyRef"),
        ({"envFrom": [{"prefix": "A_"}]}, "exactly one of secretRef"),
        ({"volumes": [{"name": "model", "emptyDir": {"sizeLimit": "1Gi"}}]}, "names of the operator's own volumes"),
        ({"volumes": [{"name": "a"}]}, "a: exactly one source"),
        ({"volumes": [{**WORK, "secret": {"secretName": "x"}}]}, "work: exactly one source"),
        ({"volumes": [WORK, WORK]}, "work is listed twice"),
        ({"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "0"}}]}, "sizeLimit must be a quantity"),
        ({"volumes": [WORK], "volumeMounts": [{"name": "other", "mountPath": "/a"}]}, "other is not one of them"),
        ({"volumes": [WORK], "volumeMounts": [{"name": "work", "mountPath": "/models/x"}]}, "collides with /models"),
        ({"volumes": [WORK], "volumeMounts": [{"name": "work", "mountPath": "/etc"}]}, "collides with /etc/ballast"),
        ({"volumes": [WORK], "volumeMounts": [{"name": "work", "mountPath": "/a/../models"}]}, "mountPath"),
        ({"volumes": [WORK], "volumeMounts": [{"name": "work", "mountPath": "/"}]}, "mountPath"),
        ({"sidecars": [{**SIDECAR, "name": "engine"}]}, "the engine's own container"),
        ({"sidecars": [{**SIDECAR, "cpu": "much"}]}, "much"),
        ({"sidecars": [{**SIDECAR, "memory": "1"}]}, "from 1Mi to 1Ti"),
        ({"sidecars": [{**SIDECAR, "volumeMounts": [{"name": "work", "mountPath": "/a"}]}]}, "work is not one of them"),
    ],
)
def test_settings_that_would_replace_the_operators_are_rejected(spec, text):
    with pytest.raises(SpecError, match=text):
        service(**spec)


def test_a_path_outside_the_operators_folders_is_accepted():
    mounts = [{"name": "work", "mountPath": path} for path in ("/models2", "/etc/certs", "/opt/.cache")]
    (engine,) = built(volumes=[WORK], volumeMounts=mounts)["containers"]
    assert [mount["mountPath"] for mount in engine["volumeMounts"]][-3:] == ["/models2", "/etc/certs", "/opt/.cache"]


def test_a_sidecar_that_does_not_start_is_reported_as_the_cause():
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    ended = {"terminated": {"exitCode": 1, "message": "no such host\n"}}
    body = build_pod(service(sidecars=[SIDECAR]), ChildOptions(), Attempt(0))
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["status"] = {"initContainerStatuses": [{"name": "logger", "state": waiting, "lastState": ended}]}
    blocked = Pod.from_api(body).blocked
    assert blocked == ("logger", "CrashLoopBackOff: back-off 10s; last: exit code 1 no such host")
    of = service(sidecars=[SIDECAR])
    stuck = pod(of=of, ready=False, running=False, waiting=("PodInitializing", ""), blocked=blocked)
    found = find(of, seen(stuck))["ModelLoaded"]
    assert (found.reason, "no such host" in found.message) == ("SidecarNotStarted", True)
