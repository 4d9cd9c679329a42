"""Services, pods and evidence for tests of pure decisions: a test sets only the relevant fields."""

from datetime import UTC, datetime, timedelta

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.control.reporting.evidence import Evidence, PodReport
from ballast_operator.control.reporting.numa_findings import NumaVerdict
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.spec_hash import spec_hash

UID = "11111111-2222-3333-4444-555555555555"
FIRST = Attempt(0)
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def service(*, annotations=None, **spec):
    body = {
        "metadata": {"name": "s", "namespace": "ns", "uid": UID, "generation": 3, "annotations": annotations},
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
        "settings_hash": "",
        "restart": "",
        "created": NOW - timedelta(seconds=age_s),
        "phase": "Running",
        "reason": "",
        "message": "",
        "node": "n1",
        "ip": "10.0.0.1",
        "terminating": False,
        "finalizers": (),
        "ready": True,
        "served": False,
        "unschedulable": None,
        "waiting": None,
        "restarts": 0,
        "running": True,
        "last_exit": None,
        "volumes": frozenset({"scratch", "model"}),
        "other_containers": (),
        "blocked": None,
        "qos": "Guaranteed",
        "image": "runtime:1",
    }
    return Pod(**{**fields, **status})


def live_pod(attempt=FIRST, name=None, without=(), **metadata):
    """A pod as the API server stores it, created for service(). `without`: removed labels."""
    body = build_pod(service(), ChildOptions(), attempt)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    body["metadata"]["name"] = name or body["metadata"]["name"]
    for label in without:
        del body["metadata"]["labels"][label]
    return body


def refused(replica=0, *, attempt=0, failures=0, age_s=100.0, reason="TopologyAffinityError", **more):
    """A pod that the kubelet rejected at admission."""
    status = {"phase": "Failed", "reason": reason, "message": "no", "ready": False, "running": False, **more}
    return pod(replica, attempt=attempt, failures=failures, age_s=age_s, **status)


PINNED = PodReport(verdict=NumaVerdict(True, "CPUsAndMemoryAligned", "fine"))


def seen(*pods, report=PINNED, **more):
    """Evidence with these pods, each with this report and each an endpoint of the Service."""
    more.setdefault("behind", frozenset(pod.uid for pod in pods))
    return Evidence(pods=pods, reports={pod.uid: report for pod in pods}, **more)
