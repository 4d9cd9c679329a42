"""Rollouts whose new pods fail, whose old pods flap, and whose control plane stalls: what served goes on serving."""

from __future__ import annotations

import time

import pytest

from ballast_operator.control.deciding.take_down import SETTLE_S
from support.cluster.cluster import Cluster
from support.cluster.kube import Kube
from support.cluster.service.specs import service, status_of, wait_condition, wait_ready
from support.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

LOOK_S = 0.25


def serving(kube: Kube, namespace: str, name: str, **spec: object) -> dict[str, str]:
    """Its pods' uids by name, once it is ready."""
    kube.apply("inferenceservices", service(name, **spec), namespace)
    wait_ready(kube, namespace, name)
    return uids(kube, namespace, name)


def uids(kube: Kube, namespace: str, name: str) -> dict[str, str]:
    found = kube.list("pods", namespace, {"serving.ballast.dev/service": name})
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def set_ready(kube: Kube, namespace: str, name: str, *, ready: bool) -> None:
    """Write the pod's readiness, as its kubelet or the node controller would."""
    status = "True" if ready else "False"
    when = "2026-01-01T00:00:00Z"
    conditions = [{"type": kind, "status": status, "lastTransitionTime": when} for kind in ("Ready", "ContainersReady")]
    kube.merge("pods", name, {"status": {"conditions": conditions}}, namespace, "status")


def watch_pods(kube: Kube, namespace: str, name: str, seconds: float) -> set[str]:
    """Every uid that was missing at some look, of those that were there at the first."""
    before, gone, until = set(uids(kube, namespace, name).values()), set[str](), time.monotonic() + seconds
    while time.monotonic() < until:
        gone |= before - set(uids(kube, namespace, name).values())
        time.sleep(LOOK_S)
    return gone


def test_old_pods_that_flap_stay_while_the_new_spec_does_not_serve(kube: Kube, namespace: str) -> None:
    before = serving(kube, namespace, "flaps", replicas=3)
    kube.apply("inferenceservices", service("flaps", "unpullable", replicas=3), namespace)
    wait_condition(kube, namespace, "flaps", "Ready", "False", "ImagePullFailed")
    for name in ("flaps-0", "flaps-1"):
        set_ready(kube, namespace, name, ready=False)
    gone = watch_pods(kube, namespace, "flaps", SETTLE_S + 5)
    assert not gone & set(before.values())
    for name in ("flaps-0", "flaps-1"):
        set_ready(kube, namespace, name, ready=True)
    wait_condition(kube, namespace, "flaps", "Available", "True")
    now = uids(kube, namespace, "flaps")
    assert [now[name] for name in ("flaps-0", "flaps-1")] == [before[name] for name in ("flaps-0", "flaps-1")]


def test_a_stall_of_etcd_in_a_rollout_costs_no_replica(cluster: Cluster, kube: Kube, namespace: str) -> None:
    before = serving(kube, namespace, "stall", replicas=3)
    etcd = cluster.control_plane.etcd
    etcd.pause()
    try:
        time.sleep(8)
    finally:
        etcd.resume()
    cluster.control_plane.wait_ready()

    for name in before:  # as the node controller does, whose leases ran out meanwhile
        set_ready(kube, namespace, name, ready=False)
    kube.apply("inferenceservices", service("stall", replicas=3, engine={"cacheLens": 5000}), namespace)
    gone = watch_pods(kube, namespace, "stall", SETTLE_S - 5)
    assert gone == set()
    for name in before:
        set_ready(kube, namespace, name, ready=True)

    def never_fewer_than_two() -> None:
        assert (status_of(kube, namespace, "stall").get("readyReplicas") or 0) >= 2

    wait_for("it to serve again", lambda: status_of(kube, namespace, "stall").get("readyReplicas") == 3)
    wait_ready(kube, namespace, "stall", meanwhile=never_fewer_than_two)
    assert not set(before.values()) & set(uids(kube, namespace, "stall").values())
