"""One screen that explains why a service is not ready."""

import asyncio
from datetime import timedelta

import pytest
from builders import NOW, UID
from fakes import REF, FakeApi, custom_resource

from ballast_operator.commands.why import Seen, explain, is_ready, look
from ballast_operator.names import ANNOTATION_NAMESPACES, LABEL_INSTALL

WIDTH = 120


def ago(**time):
    return (NOW - timedelta(**time)).isoformat()


def condition(kind, status, reason, message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": ago(minutes=7)}


def seen(*conditions, pods=(), events=(), leases=None, unread=(), generation=1, source=None, cache=None):
    metadata = {"name": "s", "namespace": "ns", "uid": UID, "generation": generation}
    status = {"observedGeneration": 1, "readyReplicas": 0, "conditions": list(conditions)} if conditions else {}
    spec = {"replicas": 2, "model": {"source": source or {}}}
    body = {"metadata": metadata, "spec": spec, "status": status}
    return Seen(body, pods, events, [lease()] if leases is None else leases, cache, unread, NOW)


def lease(namespaces="", holder="pod-0", **renewed):
    marks = {"labels": {LABEL_INSTALL: "true"}, "annotations": {ANNOTATION_NAMESPACES: namespaces}}
    return {
        "metadata": {"name": "operator", "namespace": "system", **marks},
        "spec": {"holderIdentity": holder, "renewTime": ago(**(renewed or {"seconds": 3}))},
    }


def pod(name, **status):
    owner = {"apiVersion": "serving.ballast.dev/v1alpha1", "kind": "InferenceService", "name": "s", "uid": UID}
    metadata = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": ago(hours=3)}
    return {"metadata": {**metadata, "ownerReferences": [{**owner, "controller": True}]}, "spec": {}, "status": status}


def screen(found, width=WIDTH):
    return "\n".join(explain(found, width)).splitlines()


NOT_READY = condition("Ready", "False", "ImagePullFailed", "s-0 on n1: no such image")


def test_it_begins_with_the_reason_and_the_page_that_explains_it():
    lines = screen(seen(NOT_READY))
    assert lines[:3] == [
        "ns/s: not ready, 0 of 2 replicas answer",
        "ImagePullFailed: s-0 on n1: no such image",
        "See docs/kubernetes/troubleshooting.md for what to do.",
    ]
    assert "OPERATOR" not in lines


def test_one_line_reports_that_a_service_is_scaled_to_zero():
    lines = screen(seen(condition("Ready", "False", "ScaledToZero", "replicas is 0")))
    assert lines == ["ns/s: scaled to zero; it starts when spec.replicas is raised, by hand or by an autoscaler"]


def test_conditions_show_their_age_and_ready_is_not_repeated():
    lines = screen(seen(NOT_READY, condition("ModelLoaded", "False", "ImagePullFailed", "no such image")))
    assert "  ModelLoaded    False     7m  ImagePullFailed: no such image" in lines
    assert not [line for line in lines if line.startswith("  Ready ")]


def test_each_pod_shows_why_it_waits_and_ready_pods_are_last():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    engine = {"name": "engine", "state": waiting, "restartCount": 0}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    pods = [
        pod("s-0", conditions=[{"type": "Ready", "status": "True"}]),
        pod("s-1", containerStatuses=[engine]),
        pod("s-2", conditions=[unschedulable]),
    ]
    lines = screen(seen(NOT_READY, pods=pods))
    at = lines.index("PODS")
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["s-1", "s-2", "s-0"]
    assert lines[at + 1].endswith("3h  on no node: ImagePullBackOff: no such image")
    assert lines[at + 2].endswith("no node fits: 0/3 nodes")
    assert lines[at + 3].endswith("ready")


def test_a_ready_pod_shows_its_gpus_and_their_numa_nodes():
    found = seen(NOT_READY, pods=[pod("s-0", conditions=[{"type": "Ready", "status": "True"}])])
    gpus = [{"name": "cuda:0", "numaNode": 1}, {"name": "cuda:1"}]
    found.service["status"]["placement"] = [{"pod": "s-0", "gpus": gpus}]
    assert screen(found)[-1].endswith(": ready, cuda:0 on NUMA node 1, cuda:1 on NUMA node unknown")


def test_only_the_last_events_are_shown_with_the_newest_at_the_end():
    events = [
        {
            "metadata": {"creationTimestamp": ago(days=3)},
            "involvedObject": {"name": "s"},
            "lastTimestamp": ago(minutes=minutes),
            "type": "Warning",
            "reason": f"R{minutes}",
            "message": "m",
            "count": minutes,
        }
        for minutes in range(1, 20)
    ]
    lines = screen(seen(NOT_READY, events=events))
    found = lines[lines.index("EVENTS") + 1 :]
    assert len(found) == 8
    assert found[-1].endswith("60s  Warning s: R1: m")
    assert found[0].endswith("8m  Warning s: R8 (8 times): m")


def test_an_operator_that_does_not_run_or_lags_is_reported():
    assert screen(seen())[0] == "ns/s: no operator has processed it yet"
    for leases in ([], [lease(namespaces="other")]):
        assert "  no operator that watches this namespace has a Lease: is one installed?" in screen(seen(leases=leases))
    released = screen(seen(NOT_READY, leases=[lease(holder="")]))
    assert "  the operator of Lease system/operator does not run: it last renewed the Lease 3s ago" in released
    dead = screen(seen(NOT_READY, leases=[lease(minutes=9)]))
    assert "  the operator of Lease system/operator does not run: it last renewed the Lease 9m ago" in dead
    stale = screen(seen(condition("Ready", "True", "Serving"), generation=3))
    assert "  the conditions describe generation 1 of the spec; the newest is 3" in stale


def test_unreadable_objects_are_reported_and_ignored():
    lines = screen(seen(NOT_READY, leases=[], unread=["leases cannot be read: no"]))
    assert "OPERATOR" not in lines
    assert lines[-1] == "  leases cannot be read: no"


def test_long_lines_end_at_the_screen_s_edge():
    lines = screen(seen(NOT_READY, condition("Scheduled", "False", "Unschedulable", "x" * 500)), width=80)
    (line,) = [line for line in lines if line.startswith("  Scheduled")]
    assert (len(line), line[-1]) == (80, "…")


def test_it_is_ready_only_for_its_newest_spec():
    ready = condition("Ready", "True", "Serving")
    assert is_ready(seen(ready))
    assert not is_ready(seen(ready, generation=2))
    assert not is_ready(seen(NOT_READY))
    assert not is_ready(seen())


CACHED = {"cache": {"name": "shared", "model": "r1"}}
NOT_PULLED = condition("Ready", "False", "PullFailed", "node n1: HTTP 403")
CACHE = {
    "status": {
        "conditions": [NOT_PULLED],
        "places": [
            {"name": "n1", "models": [{"name": "r1", "state": "Failed", "message": "HTTP 403"}]},
            {"name": "n2", "models": [{"name": "r1", "state": "Present"}, {"name": "k2", "state": "NoRoom"}]},
        ],
    }
}


def test_the_model_s_state_in_its_cache_is_shown_in_each_place():
    lines = screen(seen(NOT_READY, source=CACHED, cache=CACHE))
    start = lines.index("MODEL CACHE")
    assert lines[start + 1 : start + 4] == [
        "  shared: Ready False 7m  PullFailed: node n1: HTTP 403",
        "  r1 on n1: Failed: HTTP 403",
        "  r1 on n2: Present",
    ]


def test_a_missing_cache_is_reported_unless_it_could_not_be_read():
    assert "  ModelCache shared does not exist" in screen(seen(NOT_READY, source=CACHED))
    unread = screen(seen(NOT_READY, source=CACHED, unread=["ModelCache shared cannot be read: no"]))
    assert "MODEL CACHE" not in unread
    assert "MODEL CACHE" not in screen(seen(NOT_READY))


@pytest.mark.parametrize("status", [200, 403])
def test_the_cache_of_the_service_is_read(status):
    service = custom_resource(model={"source": CACHED})
    api = FakeApi(service)
    api.put({**CACHE, "kind": "ModelCache", "apiVersion": "v1", "metadata": {"name": "shared", "namespace": "ns"}})
    if status != 200:
        api.failures = {("get", "ModelCache"): status}
    found = asyncio.run(look(api, REF))
    assert (found.cache is None) is (status != 200)
    assert any(line.startswith("ModelCache shared cannot be read") for line in found.unread) is (status != 200)
