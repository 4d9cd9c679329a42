"""Services and pods for tests of pure decisions: only what matters is said."""

from datetime import UTC, datetime, timedelta

from ballast_operator.api.service import InferenceService
from ballast_operator.control.pods import Pod
from ballast_operator.spec_hash import spec_hash

UID = "11111111-2222-3333-4444-555555555555"
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def service(**spec):
    body = {
        "metadata": {"name": "s", "namespace": "ns", "uid": UID, "generation": 3},
        "spec": {"model": {"source": {"builtin": {}}}, "resources": {"cpus": 2, "memory": "1Gi", "gpus": 0}, **spec},
    }
    return InferenceService.from_api(body)


def pod(replica=0, *, of=None, attempt=0, failures=0, age_s=100.0, uid=None, **status):
    """A running, ready pod of the service `of`; `status` overrides fields of Pod."""
    name = f"s-{replica}" + (f"-r{attempt}" if attempt else "")
    fields = {
        "body": {"metadata": {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": "1"}},
        "name": name,
        "uid": uid or name,
        "replica": replica,
        "attempt": attempt,
        "failures": failures,
        "spec_hash": spec_hash((of or service()).spec),
        "created": NOW - timedelta(seconds=age_s),
        "phase": "Running",
        "reason": "",
        "message": "",
        "node": "n1",
        "ip": "10.0.0.1",
        "terminating": False,
        "ready": True,
        "unschedulable": None,
        "waiting": None,
        "restarts": 0,
        "running": True,
        "ended": None,
        "volumes": frozenset({"scratch", "model"}),
        "strangers": (),
        "qos": "Guaranteed",
    }
    return Pod(**{**fields, **status})


def refused(replica=0, *, attempt=0, failures=0, age_s=100.0, reason="TopologyAffinityError", **more):
    """A pod that the kubelet did not admit."""
    status = {"phase": "Failed", "reason": reason, "message": "no", "ready": False, "running": False, **more}
    return pod(replica, attempt=attempt, failures=failures, age_s=age_s, **status)
